"""What the trials of a comparison read stays the same: data and code of somebody's own are held against the start."""

import os

import pytest

from protosphere.comparison.sources import FILE, refuse_changed
from protosphere.comparison.trials import Trial
from protosphere.core.errors import SettingError


@pytest.fixture
def place(tmp_path):
    """Two sites' tables, a method and a comparison's folder."""
    for name in ("north", "south"):
        (tmp_path / "sites" / name).mkdir(parents=True)
        (tmp_path / "sites" / name / "train.csv").write_text("a,label\n1,0\n")
    (tmp_path / "mine.py").write_text("METHOD = 1\n")
    (tmp_path / "comparison").mkdir()
    return tmp_path


def trials_of(place, dataset):
    settings = [{"strategy": name, "dataset": dataset} for name in ("local", f"{place}/mine.py:METHOD")]
    return [Trial(f"trial-{number}", "row", "method", 0, each) for number, each in enumerate(settings)]


def rewrite(path):
    """Other content of the same size, a moment later."""
    content = path.read_text()
    path.write_text(content.replace("1", "2"))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize("form", ["{place}/sites/north", "{place}/sites/north/train.csv", "{place}/sites/*"])
@pytest.mark.parametrize("changed", ["sites/north/train.csv", "mine.py"])
def test_a_comparison_does_not_go_on_with_other_data_or_other_code(place, form, changed):
    trials = trials_of(place, form.format(place=place))
    refuse_changed(place / "comparison", trials)
    refuse_changed(place / "comparison", trials)
    rewrite(place / changed)
    source = form.format(place=place) if changed.endswith("csv") else f"{place}/mine.py"
    with pytest.raises(SettingError, match="so its finished trials would be compared with") as caught:
        refuse_changed(place / "comparison", trials)
    assert str(caught.value).startswith(source)
    (place / changed).unlink()
    with pytest.raises(SettingError, match="put it back"):
        refuse_changed(place / "comparison", trials)


def test_what_has_no_file_of_somebody_s_own_has_nothing_to_change(place):
    trials = [Trial("trial", "row", "method", 0, {"strategy": "local", "dataset": "digits, usps"})]
    refuse_changed(place / "comparison", trials)
    assert (place / "comparison" / FILE).read_text() == "{}\n"
