"""A comparison does not continue if data or code that finished trials have read has changed."""

import os

import pytest

from protosphere.comparison.sources import FILE, refuse_changed
from protosphere.comparison.trials import Trial
from protosphere.core.errors import SettingError


@pytest.fixture
def place(tmp_path):
    """Two sites' tables, an image behind a link, a method and a comparison's folder."""
    for folder in ("sites/north", "sites/south", "linked", "comparison"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("sites/north/train.csv", "sites/south/train.csv", "sites/south/scan.png", "mine.py"):
        (tmp_path / file).write_text("1\n")
    (tmp_path / "linked" / "class").symlink_to(tmp_path / "sites" / "south")
    return tmp_path


def trials_of(place, dataset):
    settings = [{"strategy": name, "dataset": dataset} for name in ("local", f"{place}/mine.py:METHOD")]
    return [Trial(f"trial-{number}", "row", "method", 0, each) for number, each in enumerate(settings)]


def rewrite(path):
    """Write other content of the same size, a moment later."""
    path.write_text("2\n")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("dataset", "changed", "source"),
    [
        ("sites/north", "sites/north/train.csv", "sites/north"),
        ("sites/north/train.csv", "sites/north/train.csv", "sites/north/train.csv"),
        ("sites/*", "sites/south/train.csv", "sites/*"),
        ("linked", "sites/south/scan.png", "linked"),
        ("", "mine.py", "mine.py"),
    ],
)
def test_a_comparison_does_not_continue_with_other_data_or_code(place, dataset, changed, source):
    trials = trials_of(place, f"{place}/{dataset}" if dataset else "digits")
    refuse_changed(place / "comparison", trials, trials)
    (place / "sites" / "south" / ".DS_Store").write_text("hidden")
    refuse_changed(place / "comparison", trials, trials)
    for change in (rewrite, os.remove):
        change(place / changed)
        with pytest.raises(SettingError, match="would be compared with") as caught:
            refuse_changed(place / "comparison", trials, trials)
        assert str(caught.value).startswith(f"{place}/{source}")


def test_data_that_no_finished_trial_has_read_may_change(place):
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
