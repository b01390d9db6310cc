"""A comparison's folder: what it keeps, what counts as finished, whose it is."""

import json
import os

import pytest

from protosphere.comparison.folder import FORMAT, ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, Printed
from protosphere.comparison.trials import expand
from protosphere.core.errors import SettingError

LOCAL = Entry("Local", {"strategy": "local"})
MADE = ComparisonSpec(
    "a test",
    (LOCAL,),
    (Entry("Digits", {"dataset": "digits"}, missing="none"),),
    (Entry("even", {"partition": "iid"}),),
    seeds=(0, 4),
    metrics=(Metric("classifier", "final"),),
    settings={"max-samples": 200, "models": "tiny_perceptron", "feature-dim": 12},
    paper=(Printed("Digits, even", "Local", "classifier final", 90.0),),
    title="A table",
    note="a note",
)


@pytest.fixture
def made():
    """The comparison's cells."""
    return expand(MADE, {}, {})


@pytest.fixture
def folder(tmp_path, made):
    return ComparisonFolder.create(MADE, made, str(tmp_path / "results"))


def finish(folder, cell, home, name="20260101-000000-local-digits", **changes):
    """A finished run of a cell, with a model of a client of its; settings may be other ones."""
    run = folder.of(cell) / name
    run.mkdir(parents=True)
    (run / "settings.json").write_text(json.dumps(cell.settings | {"resume": "", "results-dir": "/x"} | changes))
    (run / "summary.json").write_text(json.dumps({"status": "completed"}))
    (run / "checkpoint.safetensors").touch()
    store = home / "clients" / name / "0"
    store.mkdir(parents=True)
    (store / "client.json").write_text("{}")
    return run


def test_what_was_asked_for_is_read_again_from_the_newest_or_by_name(folder, made, tmp_path):
    assert folder.path.name.endswith("-compare-a-test")
    # of the same second
    newer = ComparisonFolder.create(MADE, made, str(tmp_path / "results"))
    assert newer.path != folder.path
    os.utime(folder.path / "comparison.json", (1, 1))
    for name, path in (("latest", newer.path), (folder.path.name, folder.path), (str(folder.path), folder.path)):
        found = ComparisonFolder.find(name, str(tmp_path / "results"))
        assert found.path == path
        assert found.read() == (MADE, made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda kept: kept.update(format=FORMAT + 1, version="9.9"), f"Protosphere 9.9, format {FORMAT + 1}"),
        (lambda kept: kept["trials"][1]["settings"].update(new=1), "whose settings differ in `new`"),
        (lambda kept: kept.pop("trials"), "cannot be read (KeyError: 'trials')"),
        (lambda kept: kept["trials"][0].update(name="../../elsewhere"), '"../../elsewhere" is not a run of it)'),
        (lambda kept: kept["comparison"].update(metrics=["final"]), "cannot be read (SettingError"),
        (None, "comparison.json cannot be read (JSONDecodeError"),
    ],
)
def test_a_folder_of_another_version_or_a_broken_one_is_refused(folder, change, said):
    file = folder.path / "comparison.json"
    # as somebody leaves it who changes it by hand
    kept = json.loads(file.read_text())
    if change:
        change(kept)
    file.write_text(json.dumps(kept) if change else "{")
    with pytest.raises(SettingError) as caught:
        folder.read()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- which cells are finished ----------------------------------------------------------------------------


def test_a_cell_is_finished_by_a_whole_summary_of_its_settings_wherever_it_ran(folder, made, home):
    assert folder.run_of(made[0]) is None
    run = finish(folder, made[0], home, **{"device": "cuda", "round-timeout": 1.0})
    assert folder.run_of(made[0]) == run
    assert folder.run_of(made[1]) is None
    for torn in ('{"status": "comple', '{"status": "failed"}'):
        (run / "summary.json").write_text(torn)
        assert folder.run_of(made[0]) is None


def test_a_run_of_another_comparison_is_refused(folder, made, home):
    finish(folder, made[0], home, rounds=7)
    with pytest.raises(
        SettingError, match="is not a run of this comparison: its setting `rounds` is 7, here it is 20; move"
    ):
        folder.run_of(made[0])


def test_nothing_is_taken_away_where_a_link_leads(folder, made, tmp_path):
    kept = tmp_path / "mine" / made[0].name / "work.txt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    (folder.path / "trials").symlink_to(tmp_path / "mine")
    with pytest.raises(SettingError, match="trials is a link to "):
        folder.discard(made[0])
    assert kept.exists()


def test_what_an_unfinished_cell_left_is_taken_away(folder, made, home):
    run = finish(folder, made[0], home)
    other = finish(folder, made[1], home, "20260101-000001-local-digits")
    folder.discard_models(made[0])
    assert run.exists()
    assert not (home / "clients" / run.name).exists()
    folder.discard(made[0])
    assert not folder.of(made[0]).exists()
    assert other.exists()
    assert (home / "clients" / other.name).exists()


def test_two_processes_do_not_share_a_folder(folder):
    again = ComparisonFolder(folder.path).hold()
    with folder.hold(), pytest.raises(SettingError, match="is being written by a comparison that has not ended"):
        again.__enter__()
    with ComparisonFolder(folder.path).hold():
        assert (folder.path / ".lock").exists()
