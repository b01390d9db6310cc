"""`protosphere runs`: what lies in the results folder."""

import json
import shutil

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.core.home import stores
from protosphere.launch.grid import run_in_process
from protosphere.record.folder import RunFolder
from protosphere.stored_runs import list_stored
from tests.conftest import QUICK as DIGITS

RUN = {"strategy": "local", "dataset": "digits", "rounds": 2}
QUICK = DIGITS | {"max-samples": 300, "feature-dim": 8, "partition": "iid"}


def asked(*arguments):
    return CliRunner().invoke(app, ["runs", *arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home with a run, one whose clients are the same, and one with other clients; their names."""
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOSPHERE_HOME", str(place))
        patch.setattr("protosphere.server_app.status.leave_report", lambda folder: None)
        own = ({"strategy": "protonorm"}, {"strategy": "local"}, {"strategy": "protonorm", "seed": 1})
        runs = [run_in_process(QUICK | each, clients=4, workers=1, show=lambda line: None) for each in own]
    return place, [run.name for run in runs]


@pytest.fixture
def three(trained, home):
    """Folders of these runs, in the test's own home."""
    place, names = trained
    for folder in ("results", "clients"):
        shutil.copytree(place / folder, home / folder)
    return [home / "results" / name for name in names]


def listed(folders):
    """What is listed of the results folder that holds them, by folder."""
    return {entry.path: entry for entry in list_stored(str(folders[0].parent))}


def test_all_runs_are_listed_with_state_headline_and_what_they_take(three):
    first, other, cut = three
    (cut / "summary.json").unlink()
    status = json.loads((cut / "status.json").read_text())
    (cut / "status.json").write_text(json.dumps(status | {"state": "running", "round": 1}))
    found = listed(three)
    assert {path: each.state for path, each in found.items()} == {
        first: "completed",
        other: "completed",
        cut: "stopped",
    }
    sizes = [
        path.stat().st_size for place in (first, stores(first.name)) for path in place.rglob("*") if path.is_file()
    ]
    assert found[first].size == sum(sizes)
    assert stores(first.name).is_dir()
    shown = asked("--results", str(first.parent)).stdout
    headline = json.loads((first / "summary.json").read_text())["headline"]["accuracy"]
    assert f"{100 * headline:.2f}" in next(line for line in shown.splitlines() if first.name in line)
    assert "stopped 1/2" in next(line for line in shown.splitlines() if cut.name in line)
    with FileLock(cut / ".lock"):
        assert listed(three)[cut].state == "running"
    (cut / "status.json").unlink()
    assert listed(three)[cut].state == "starting"


@pytest.mark.parametrize(
    "files",
    [
        {"comparison.json": {"trials": [{}]}},
        {"settings.json": {}},
        {"settings.json": RUN, "status.json": {"state": "running"}, "summary.json": {"headline": "x"}},
    ],
)
def test_files_that_hold_something_else_are_listed_too_and_end_no_list(home, files):
    (home / "results" / "odd").mkdir(parents=True)
    for name, content in files.items():
        (home / "results" / "odd" / name).write_text(json.dumps(content))
    result = asked()
    assert (result.exit_code, "odd" in result.stdout) == (0, True), result.exception
    (entry,) = list_stored()
    assert (entry.headline, entry.state) == (None, "unreadable")


def test_a_hidden_folder_of_an_editor_is_not_listed(home):
    for name in (".vscode", "editor"):
        (home / "results" / name).mkdir(parents=True)
        (home / "results" / name / "settings.json").write_text('{"tab": 4}')
    assert [entry.name for entry in list_stored()] == ["editor"]


def test_a_comparison_is_one_entry(three, tmp_path):
    folder = tmp_path / "20260101-000000-compare-digits"
    run = RunFolder(three[0])
    inside = folder / "trials" / "a" / run.name
    inside.parent.mkdir(parents=True)
    shutil.move(three[0], inside)
    cell = {"name": "a", "settings": RunFolder(inside).settings()}
    (folder / "comparison.json").write_text(json.dumps({"trials": [cell, cell | {"name": "b"}]}))
    (found,) = list_stored(str(tmp_path))
    assert (found.state, found.rounds, found.what) == ("stopped", "1/2", "2 runs")
