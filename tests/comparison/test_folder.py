"""A comparison's folder: its content, and which trials are finished."""

import json
import os

import pytest

from protosphere.comparison.folder import FORMAT, ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, Printed
from protosphere.comparison.trials import expand
from protosphere.core.errors import SettingError

SPEC = ComparisonSpec(
    "a test",
    (Entry("Local", {"strategy": "local"}),),
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
def trials():
    return expand(SPEC, {}, {})


@pytest.fixture
def folder(tmp_path, trials):
    return ComparisonFolder.create(SPEC, trials, str(tmp_path / "results"))


def finish(folder, trial, home, name="20260101-000000-local-digits", **changes):
    """A finished run of a trial, with a client's model; settings may differ by `changes`."""
    run = folder.of(trial) / name
    run.mkdir(parents=True)
    (run / "settings.json").write_text(json.dumps(trial.settings | {"resume": "", "results-dir": "/x"} | changes))
    (run / "summary.json").write_text(json.dumps({"status": "completed"}))
    (run / "checkpoint.safetensors").touch()
    store = home / "clients" / name / "0"
    store.mkdir(parents=True)
    (store / "client.json").write_text("{}")
    return run


def test_a_comparison_is_read_again_from_the_newest_folder_or_by_name(folder, trials, tmp_path):
    assert folder.path.name.endswith("-compare-a-test")
    # in the same second
    newer = ComparisonFolder.create(SPEC, trials, str(tmp_path / "results"))
    assert newer.path != folder.path
    os.utime(folder.path / "comparison.json", (1, 1))
    for name, path in (("latest", newer.path), (folder.path.name, folder.path), (str(folder.path), folder.path)):
        same = ComparisonFolder.find(name, str(tmp_path / "results"))
        assert same.path == path
        assert same.read() == (SPEC, trials)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda content: content.update(format=FORMAT + 1, version="9.9"), f"Protosphere 9.9, format {FORMAT + 1}"),
        (lambda content: content["trials"][1]["settings"].update(new=1), "settings differ in `new`"),
        (lambda content: content.pop("trials"), "cannot be read (KeyError: 'trials')"),
        (lambda content: content["trials"][0].update(name="../../elsewhere"), '"../../elsewhere" is not a run of it)'),
        (lambda content: content["comparison"].update(metrics=["final"]), "cannot be read (SettingError"),
        (None, "cannot be read (JSONDecodeError"),
    ],
)
def test_a_damaged_folder_or_one_of_another_version_is_refused(folder, change, word):
    file = folder.path / "comparison.json"
    content = json.loads(file.read_text())
    if change:
        change(content)
    file.write_text(json.dumps(content) if change else "{")
    with pytest.raises(SettingError) as caught:
        folder.read()
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trial_is_finished_by_a_whole_summary_of_its_settings(folder, trials, home):
    assert folder.run_of(trials[0]) is None
    # where it ran does not matter
    run = finish(folder, trials[0], home, **{"device": "cuda", "round-timeout": 1.0})
    assert folder.run_of(trials[0]) == run
    assert folder.run_of(trials[1]) is None
    for summary in ('{"status": "comple', '{"status": "failed"}'):
        (run / "summary.json").write_text(summary)
        assert folder.run_of(trials[0]) is None
    finish(folder, trials[1], home, "20260101-000001-local-digits", rounds=7)
    with pytest.raises(SettingError, match="its setting `rounds` is 7, here it is 20"):
        folder.run_of(trials[1])


def test_files_behind_a_link_are_not_deleted(folder, trials, tmp_path):
    file = tmp_path / "mine" / trials[0].name / "work.txt"
    file.parent.mkdir(parents=True)
    file.touch()
    (folder.path / "trials").symlink_to(tmp_path / "mine")
    with pytest.raises(SettingError, match="trials is a link to "):
        folder.discard(trials[0])
    assert file.exists()


def test_only_the_files_of_the_trial_are_deleted(folder, trials, home):
    run = finish(folder, trials[0], home)
    other = finish(folder, trials[1], home, "20260101-000001-local-digits")
    folder.discard_models(trials[0])
    assert run.exists()
    assert not (home / "clients" / run.name).exists()
    folder.discard(trials[0])
    assert not folder.of(trials[0]).exists()
    assert other.exists()
    assert (home / "clients" / other.name).exists()


def test_two_processes_do_not_share_a_folder(folder):
    with folder.hold(), pytest.raises(SettingError, match="is being written by a comparison that has not ended"):
        ComparisonFolder(folder.path).hold().__enter__()
    with ComparisonFolder(folder.path).hold():
        assert (folder.path / ".lock").exists()
