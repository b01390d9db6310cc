"""`protosphere compare`: what it passes on, what it prints, how it exits."""

import re
import shlex
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere import comparing
from protosphere.cli.main import app
from protosphere.comparison.execution import Finished
from protosphere.comparison.spec import load
from protosphere.launch.processes import Interrupted
from protosphere.plans.assignments import read_all
from tests.comparison.fabricated import write_run
from tests.pictures import paint

QUICK = 'rounds=1 max-samples=200 feature-dim=12 models="tiny_perceptron" device="cpu" clients=2'
QUICK += " local-epochs=1 momentum=0.0"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, home, undrawn):
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 8)


@pytest.fixture
def invoke():
    """invoke(*arguments): the result of `protosphere compare ...`."""
    return lambda *arguments: CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "400"})


@pytest.fixture
def calls(monkeypatch):
    """What `run_trials` was called with. Each trial without a run gets one, unless its method is in `calls.failing`."""

    class Calls(dict):
        failing = ()
        raises = None

    calls = Calls()

    def run_trials(folder, trials, executor, say, **options):
        calls.update(folder=folder, trials=trials, jobs=executor.jobs, **options)
        if calls.raises:
            raise calls.raises
        ended = []
        for trial in trials:
            if folder.run_of(trial):
                continue
            reason = "it broke." if trial.method in calls.failing else ""
            if not reason:
                write_run(folder.of(trial) / "run", trial.settings, 0.8125)
            ended.append(Finished(trial, 61.0, reason))
        return ended

    monkeypatch.setattr(comparing, "run_trials", run_trials)
    return calls


# --- what it passes on ---------------------------------------------------------------------------------------


def test_choices_become_trials_and_their_tables_are_printed_and_written(invoke, calls):
    flags = ["--methods", "local,pfpl", "--seeds", "3,1", "--results", "out", "--jobs", "2", "--keep-models"]
    result = invoke(*flags, "-c", QUICK, "--metric", "final")
    assert result.exit_code == 0, result.output
    trials = [("digits", method, seed) for method in ("local", "pfpl") for seed in (3, 1)]
    assert [(trial.row, trial.method, trial.seed) for trial in calls["trials"]] == trials
    assert (calls["jobs"], calls["workers"], calls["reports"], calls["keep_models"]) == (2, 1, False, True)
    assert calls["folder"].path.parent == Path("out").absolute()
    assert "4 trials, 2 at a time\n" in result.stdout
    for words in ("accuracy in % (final), mean ±", "81.25 ± 0.00", "majority class", "try 5 seeds instead of 2"):
        assert words in result.stdout
    files = re.findall(r"^written: .*/(\S+)$", result.stdout, flags=re.MULTILINE)
    assert files == ["table.csv", "differences.csv", "table.md", "table.tex", "report.html"]


FILE = """
methods = ["frame", { label = "Local (classifier)", strategy = "local", inference = "classifier" }]
datasets = [{ label = "Digits", dataset = "digits" }]
seeds = [0]
[settings]
rounds = 10
clients = 8
models = "tiny_perceptron"
[[paper]]
dataset = "Digits"
accuracy = { "Local (classifier)" = 82.9 }
"""


def test_settings_of_the_command_line_are_in_the_notes_and_values_of_the_paper_are_left_out(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    # where a run runs is no setting of the paper's
    spec, _ = comparing.resolve(load("mine.toml"), overrides={"device": "cpu"})
    assert (len(spec.paper), spec.note) == (1, "")
    spec, _ = comparing.resolve(load("mine.toml"), overrides={"alpha": 0.5})
    assert spec.paper == ()
    assert "Trials that read them have alpha = 0.5. The paper's values are left out" in spec.note
    assert [row.label for row in spec.rows] == ["Digits"]


def test_a_row_has_the_name_of_the_data_set_of_the_command_line(tmp_path):
    paint(tmp_path / "mnist", "ab", 40)
    spec, trials = comparing.resolve(load(), overrides=read_all([QUICK, 'dataset="./mnist"']))
    assert {trial.row for trial in trials} == {"mnist"}
    assert spec.name == "mnist"


# --- how it ends -------------------------------------------------------------------------------------------


def test_a_failed_trial_ends_with_the_command_that_runs_it_again(invoke, calls):
    calls.failing = ("local",)
    base = ["--methods", "local,pfpl", "--seeds", "0", "-c", QUICK, "--results", "my results", "--jobs", "1"]
    first = invoke(*base, "--on", "workers:2", "--keep-models")
    assert first.exit_code == 1
    folder = calls["folder"].path
    assert f"failed: digits | local | seed 0: it broke. ({folder}/trials/digits-local-seed0/output.log)" in first.stderr
    assert "1 of 2 trials failed; " in first.stderr
    assert "missing" in (folder / "table.csv").read_text()

    calls.failing = ()
    command = shlex.split(first.stderr.splitlines()[-1].split("`")[1])
    assert command[:2] == ["protosphere", "compare"]
    again = invoke(*command[2:])
    assert again.exit_code == 0, again.output
    assert calls["folder"].path == folder
    # as many at a time as at the start
    assert calls["jobs"] == 1
    assert "missing" not in (folder / "table.csv").read_text()


def test_a_signal_keeps_finished_trials(invoke, calls):
    calls.raises = Interrupted(signal.SIGTERM)
    result = invoke("--methods", "local", "--seeds", "0", "-c", QUICK)
    assert result.exit_code == 128 + signal.SIGTERM
    folder = calls["folder"].path
    again = f"`protosphere compare --resume {folder}`"
    assert result.stderr == f"stopped by SIGTERM; finished trials are kept, and {again} runs the others.\n"
