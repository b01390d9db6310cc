"""What the tests of `protosphere run` share: a folder, the command, and a launcher that launches nothing."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.launch import flower as launching
from protosphere.launch.flower import Outcome

ROOT = Path(launching.__file__).resolve().parents[2]
QUICK = 'rounds=1 max-samples=400 feature-dim=12 models="tiny_perceptron" device="cpu" local-epochs=1 momentum=0.0'
SELECTED = {"selected": 0.9111, "selected_round": 2, "best": 0.95, "client-best": 0.96, "last-5": 0.9, "final": 0.94}
SELECTED |= {"worst": 0.808}
SUMMARY = {
    "status": "completed",
    "strategy": "protonorm",
    "dataset": "digits",
    "clients": 3,
    "rounds": 2,
    "headline": {"rule": "local-prototypes", "figure": "selected", "accuracy": 0.9111, "round": 2, "clients": 3}
    | {"rows": 90},
    "floor": {"majority-class": 0.318},
    "rules": {
        "classifier": {"selected": None, "best": 0.72, "client-best": 0.7, "last-5": 0.45, "final": 0.5, "worst": 0.4},
        "local-prototypes": SELECTED,
    },
    "bytes": {"payload_up": 12_800, "payload_down": 2_500_000, "wire_up": 28_444, "wire_down": 2_600_000}
    | {"evaluation_wire_up": 5_000, "evaluation_wire_down": 7_000},
    "seconds": 61.25,
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here():
    """here(*arguments): the result of `protosphere run ...`."""
    return lambda *arguments: CliRunner().invoke(app, ["run", *arguments])


@pytest.fixture
def invoke(here):
    """invoke(*arguments): the same over Flower, on this machine where they name no other place."""
    return lambda *arguments: here(*([] if "--on" in arguments else ["--on", "flower"]), *arguments)


@pytest.fixture
def folder(tmp_path):
    """A finished run's folder."""
    folder = tmp_path / "finished"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    return folder


@pytest.fixture
def launched(monkeypatch, folder):
    """What `launch` was called with; it answers `launched.outcome`, or raises it."""

    class Launched(dict):
        outcome = Outcome(True, folder, "", folder / "run.log")

    calls = Launched()

    def launch(run_config, **keywords):
        calls.update(keywords, run_config=run_config)
        keywords["show"]("results: /there")
        keywords["show"]("round 1/2 | accuracy")
        keywords["show"]("results: /there")
        if isinstance(calls.outcome, BaseException):
            raise calls.outcome
        return calls.outcome

    monkeypatch.setattr(launching, "launch", launch)
    return calls
