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
    refuse_changed(place / "comparison", trials, trials)
    refuse_changed(place / "comparison", trials, trials)
    rewrite(place / changed)
    source = form.format(place=place) if changed.endswith("csv") else f"{place}/mine.py"
    with pytest.raises(SettingError, match="so its finished trials would be compared with") as caught:
        refuse_changed(place / "comparison", trials, trials)
    assert str(caught.value).startswith(source)
    (place / changed).unlink()
    with pytest.raises(SettingError, match="put it back"):
        refuse_changed(place / "comparison", trials, trials)


def test_what_no_finished_trial_has_read_may_be_mended(place):
    trials = trials_of(place, f"{place}/sites/north")
    refuse_changed(place / "comparison", trials, [])
    rewrite(place / "mine.py")
    refuse_changed(place / "comparison", trials, trials[:1])
    rewrite(place / "sites" / "north" / "train.csv")
    with pytest.raises(SettingError, match="north has changed"):
        refuse_changed(place / "comparison", trials, trials[:1])


def test_files_are_those_that_a_reader_sees(place):
    """Behind links, beside a table, and none that is hidden."""
    (place / "linked").mkdir()
    (place / "linked" / "class").symlink_to(place / "sites" / "south")
    (place / "linked" / "class" / "back").symlink_to(place / "linked")
    (place / "sites" / "south" / "scan.png").write_text("1")
    changes = {f"{place}/linked": "sites/south/scan.png", f"{place}/sites/north/train.csv": "classes"}
    for dataset, changed in changes.items():
        trials = trials_of(place, dataset)
        refuse_changed(place / "comparison", trials, [])
        (place / "sites" / "south" / ".DS_Store").write_text(dataset)
        refuse_changed(place / "comparison", trials, trials)
        if changed == "classes":
            (place / "sites" / "north" / "classes.txt").write_text("ill\nwell\n")
        else:
            rewrite(place / changed)
        with pytest.raises(SettingError, match="has changed"):
            refuse_changed(place / "comparison", trials, trials)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_note_is_one_sentence(place, content):
    (place / "comparison" / FILE).write_text(content)
    with pytest.raises(SettingError, match="is damaged"):
        refuse_changed(place / "comparison", trials_of(place, "digits"), [])


def test_what_has_no_file_of_somebody_s_own_has_nothing_to_change(place):
    trials = [Trial("trial", "row", "method", 0, {"strategy": "local", "dataset": "digits, usps"})]
    refuse_changed(place / "comparison", trials, trials)
    assert (place / "comparison" / FILE).read_text() == "{}\n"
