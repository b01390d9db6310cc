"""For the tests of `protosphere run`: a folder, the command, and a launcher that starts nothing."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.launch import flower as launching
from protosphere.launch.flower import Outcome
from tests.comparison.fabricated import write_run

ROOT = Path(launching.__file__).resolve().parents[2]
QUICK = 'rounds=1 max-samples=400 feature-dim=12 models="tiny_perceptron" device="cpu" local-epochs=1 momentum=0.0'


@pytest.fixture
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory for this test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here():
    """here(*arguments): the result of `protosphere run ...`."""
    return lambda *arguments: CliRunner().invoke(app, ["run", *arguments])


@pytest.fixture
def invoke(here):
    """invoke(*arguments): the same over Flower, here unless the arguments name another place."""
    return lambda *arguments: here(*([] if "--on" in arguments else ["--on", "flower"]), *arguments)


@pytest.fixture
def folder(tmp_path):
    """A finished run's folder."""
    folder = tmp_path / "finished"
    write_run(folder, {"strategy": "protonorm", "dataset": "digits"}, 0.9, 0.318)
    return folder


@pytest.fixture
def launched(monkeypatch, folder):
    """The arguments of `launch`, which returns `launched.outcome`."""

    class Launched(dict):
        outcome = Outcome(True, folder)

    calls = Launched()

    def launch(run_config, **keywords):
        calls.update(keywords, run_config=run_config)
        keywords["show"]("results: /there")
        keywords["show"]("round 1/2 | accuracy")
        keywords["show"]("results: /there")
        return calls.outcome

    monkeypatch.setattr(launching, "launch", launch)
    return calls
