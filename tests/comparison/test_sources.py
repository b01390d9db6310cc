"""Data and code that finished trials have read must not change before a comparison goes on."""

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
    (tmp_path / "sites" / "south" / "scan.png").write_text("1")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "class").symlink_to(tmp_path / "sites" / "south")
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


@pytest.mark.parametrize(
    ("dataset", "changed", "source"),
    [
        ("{place}/sites/north", "sites/north/train.csv", "{place}/sites/north"),
        ("{place}/sites/north/train.csv", "sites/north/train.csv", "{place}/sites/north/train.csv"),
        ("{place}/sites/*", "sites/south/train.csv", "{place}/sites/*"),
        ("{place}/linked", "sites/south/scan.png", "{place}/linked"),
        ("digits", "mine.py", "{place}/mine.py"),
    ],
)
def test_a_comparison_does_not_go_on_with_other_data_or_code(place, dataset, changed, source):
    trials = trials_of(place, dataset.format(place=place))
    refuse_changed(place / "comparison", trials, trials)
    (place / "sites" / "south" / ".DS_Store").write_text("hidden")
    refuse_changed(place / "comparison", trials, trials)
    for change in (rewrite, os.remove):
        change(place / changed)
        with pytest.raises(SettingError, match="would be compared with") as caught:
            refuse_changed(place / "comparison", trials, trials)
        assert str(caught.value).startswith(source.format(place=place))


def test_what_no_finished_trial_has_read_may_change(place):
    trials = trials_of(place, f"{place}/sites/north")
    refuse_changed(place / "comparison", trials, [])
    rewrite(place / "mine.py")
    refuse_changed(place / "comparison", trials, trials[:1])
    rewrite(place / "sites" / "north" / "train.csv")
    with pytest.raises(SettingError, match="north has changed"):
        refuse_changed(place / "comparison", trials, trials[:1])


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_file_of_digests_is_refused(place, content):
    (place / "comparison" / FILE).write_text(content)
    with pytest.raises(SettingError, match="is damaged"):
        refuse_changed(place / "comparison", trials_of(place, "digits"), [])
