"""`protosphere runs`: what lies in the results folder, and away with some."""

import json
import shutil

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.core.home import stores
from protosphere.launch.grid import run_in_process
from protosphere.record.folder import RunFolder, find_run
from protosphere.stored_runs import find, list_stored
from tests.conftest import QUICK as DIGITS

RUN = {"strategy": "local", "dataset": "digits", "rounds": 2}
QUICK = DIGITS | {"max-samples": 300, "feature-dim": 8, "partition": "iid"}


def asked(*arguments, answer=None):
    return CliRunner().invoke(app, ["runs", *arguments], input=answer, env={"COLUMNS": "200"})


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


def test_deleted_runs_take_their_clients_models_along_and_nothing_else(three):
    first, other, _ = three
    results = ["--results", str(first.parent)]
    assert asked("delete", first.name, *results).exit_code == 2, "nobody can be asked"
    assert asked("delete", first.name, "nonesuch", "--yes", *results).exit_code == 2
    with FileLock(other / ".lock"):
        done = asked("delete", first.name, other.name, "--yes", *results)
    assert (done.exit_code, "being written" in done.stderr) == (2, True)
    assert all(path.is_dir() and stores(path.name).is_dir() for path in three)
    # another program's folder
    editor = first.parent.parent / "editor"
    editor.mkdir()
    (editor / "settings.json").write_text('{"tab": 4}')
    assert (asked("delete", str(editor), "--yes", *results).exit_code, editor.is_dir()) == (2, True)
    link = first.parent / "link"
    link.symlink_to(other)
    # the results folder may stand before the command
    assert asked(*results, "delete", first.name, "link", str(first), "--yes").exit_code == 0
    assert not link.is_symlink()
    assert [path.is_dir() for path in three] == [False, False, True]
    assert [stores(path.name).is_dir() for path in three] == [False, False, True]


def test_a_copy_goes_alone_and_the_newest_is_no_folder_of_another_program(three, tmp_path):
    copy = tmp_path / "backup" / three[0].name
    shutil.copytree(three[0], copy)
    assert asked("delete", str(copy), "--yes").exit_code == 0
    assert (copy.exists(), stores(three[0].name).is_dir()) == (False, True)
    whole = three[0].parent / "whole"
    (whole / "trials" / "a").mkdir(parents=True)
    shutil.move(three[2], whole / "trials" / "a" / three[2].name)
    (whole / "comparison.json").write_text(json.dumps({"trials": [{"name": "a", "settings": RUN}]}))
    shutil.copytree(whole, tmp_path / "backup" / "whole")
    assert asked("delete", str(tmp_path / "backup" / "whole"), "--yes").exit_code == 0
    assert stores(three[2].name).is_dir()
    for name in (".vscode", "editor"):
        (three[0].parent / name).mkdir()
        (three[0].parent / name / "settings.json").write_text('{"tab": 4}')
    newest = list_stored()[-2].path
    assert [entry.name for entry in list_stored()][-1] == "editor"
    assert find("latest") == newest
    assert find_run("latest", "") in three
    assert asked("delete", "latest", "--yes").exit_code == 0
    assert not newest.exists()
    assert (three[0].parent / ".vscode").is_dir()


def test_a_comparison_is_one_entry_and_goes_as_one(three, tmp_path):
    folder = tmp_path / "20260101-000000-compare-digits"
    run = RunFolder(three[0])
    inside = folder / "trials" / "a" / run.name
    inside.parent.mkdir(parents=True)
    shutil.move(three[0], inside)
    cell = {"name": "a", "settings": RunFolder(inside).settings()}
    (folder / "comparison.json").write_text(json.dumps({"trials": [cell, cell | {"name": "b"}]}))
    (found,) = list_stored(str(tmp_path))
    assert (found.comparison, found.state, found.rounds, found.what) == (True, "stopped", "1/2", "2 runs")
    assert asked("delete", folder.name, "--yes", "--results", str(tmp_path)).exit_code == 0
    assert not folder.exists()
    assert not stores(run.name).exists()
