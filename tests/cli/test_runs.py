"""`protosphere runs`: what lies in the results folder."""

import json
import shutil

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.launch.grid import run_in_process
from tests.conftest import QUICK as DIGITS

RUN = {"strategy": "local", "dataset": "digits", "rounds": 2}


def list_runs():
    """Cells of each line by the first, the folder's name."""
    result = CliRunner().invoke(app, ["runs"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.exception
    return {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}


def test_runs_and_comparisons_are_listed_with_state_and_headline(home):
    quick = DIGITS | {"max-samples": 300, "feature-dim": 8, "partition": "iid", "report": False}
    folder = run_in_process(quick | {"strategy": "local"}, clients=2, show=lambda line: None)
    headline = json.loads((folder / "summary.json").read_text())["headline"]["accuracy"]
    status = json.loads((folder / "status.json").read_text())
    done = f"{status['round']}/{status['rounds']}"
    assert list_runs()[folder.name] == ["local", "digits", "completed", done, f"{100 * headline:.2f}"]
    (folder / "summary.json").unlink()
    (folder / "status.json").write_text(json.dumps(status | {"state": "running"}))
    assert list_runs()[folder.name][2] == "stopped"
    with FileLock(folder / ".lock"):
        assert list_runs()[folder.name][2] == "running"
    (folder / "status.json").unlink()
    assert list_runs()[folder.name][2] == "starting"

    inside = home / "results" / "compared" / "trials" / "a" / folder.name
    inside.parent.mkdir(parents=True)
    shutil.move(folder, inside)
    (inside / "summary.json").touch()
    trial = {"name": "a", "settings": {"dataset": "digits"}}
    (home / "results" / "compared" / "comparison.json").write_text(
        json.dumps({"trials": [trial, trial | {"name": "b"}]})
    )
    assert list_runs()["compared"][:5] == ["2", "trials", "digits", "stopped", "1/2"]


@pytest.mark.parametrize(
    "files",
    [
        {"comparison.json": {"trials": [{}]}},
        {"settings.json": {}},
        {"settings.json": RUN, "status.json": {"state": "running"}, "summary.json": {"headline": "x"}},
    ],
)
def test_unreadable_folders_are_listed_as_such(home, files):
    for folder in ("odd", ".vscode"):
        (home / "results" / folder).mkdir(parents=True)
        for name, content in files.items():
            (home / "results" / folder / name).write_text(json.dumps(content))
    cells = list_runs()
    assert cells["odd"] == ["?", "?", "unreadable", "-"]
    assert ".vscode" not in cells
