"""`protosphere compare`: what it hands down, what it prints, how it exits."""

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
from protosphere.core.errors import SettingError
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


# --- what it hands down ------------------------------------------------------------------------------------


def test_choices_become_trials_and_their_tables_are_printed_and_written(invoke, calls):
    flags = ["--methods", "local,pfpl", "--seeds", "3,1", "--results", "out", "--jobs", "2", "--keep-models"]
    result = invoke(*flags, "-c", QUICK, "--metric", "final")
    assert result.exit_code == 0, result.output
    assert [(trial.row, trial.method, trial.seed) for trial in calls["trials"]] == [
        ("digits", method, seed) for method in ("local", "pfpl") for seed in (3, 1)
    ]
    assert (calls["jobs"], calls["workers"], calls["reports"], calls["keep_models"]) == (2, 1, False, True)
    assert calls["folder"].path.parent == Path("out").absolute()
    assert "4 trials, 2 at a time\n" in result.stdout
    for words in ("accuracy in % (final), mean ±", "81.25 ± 0.00", "majority class", "try 5 seeds instead of 2"):
        assert words in result.stdout
    written = re.findall(r"^written: .*/(\S+)$", result.stdout, flags=re.MULTILINE)
    assert written == ["table.csv", "differences.csv", "table.md", "table.tex", "report.html"]


PRINTED = """
methods = ["frame", "local"]
datasets = ["digits"]
seeds = [0]
[[paper]]
dataset = "digits"
accuracy = { local = 82.9 }
[settings]
rounds = 10
clients = 8
models = "tiny_perceptron"
"""


def test_what_a_paper_prints_stands_beside_its_own_settings_alone(invoke, calls, tmp_path):
    (tmp_path / "mine.toml").write_text(PRINTED)
    # where a run runs is no setting of the paper's
    assert invoke("mine.toml", "-c", 'device="cpu"').exit_code == 0
    assert "82.90" in (calls["folder"].path / "table.md").read_text()
    assert invoke("mine.toml", "-c", "learning-rate=0.5").exit_code == 0
    table = (calls["folder"].path / "table.md").read_text()
    assert "the paper's values are left out" in table
    assert "82.90" not in table


ONE_ROW = 'methods = ["local"]\nseeds = [0]\ndatasets = [{ label = "Digits", dataset = "digits" }]\n'
PARTITION = '[[partitions]]\nlabel = "Dirichlet 0.1"\npartition = "dirichlet"\n'


def resolved(file, settings, tmp_path):
    """The comparison of a file, or the usual one, with settings of the command line."""
    (tmp_path / "mine.toml").write_text(file)
    overrides = read_all([QUICK, settings])
    return comparing.resolve(load("mine.toml" if file else ""), narrowing={"seeds": "0"}, overrides=overrides)


@pytest.mark.parametrize(
    ("file", "settings", "row", "name"),
    [
        ("", 'dataset="./mnist"', "mnist", "mnist"),
        ("", "alpha=0.5", "digits, alpha 0.5", "digits"),
        (ONE_ROW, 'partition="iid" partition-table=""', "Digits, iid", "mine"),
        (ONE_ROW + PARTITION, "rounds=1", "Digits, Dirichlet 0.1", "mine"),
    ],
)
def test_a_row_is_called_after_what_the_settings_make_of_it(tmp_path, file, settings, row, name):
    paint(tmp_path / "mnist", "ab", 40)
    spec, trials = resolved(file, settings, tmp_path)
    assert {trial.row for trial in trials} == {row} == {row.label for row in spec.rows}
    assert spec.name == name


@pytest.mark.parametrize(
    ("more", "settings", "words"),
    [
        (PARTITION, "alpha=0.5", r"setting `alpha` may be what the labels of the partitions say \(Dirichlet 0.1\)"),
        ("", 'inference="classifier"', 'setting `inference` is one of the method "Local'),
    ],
)
def test_names_that_would_no_longer_be_true_are_refused(tmp_path, more, settings, words):
    method = '[{ label = "Local (by its classifier)", strategy = "local", inference = "classifier" }]'
    with pytest.raises(SettingError, match=words):
        resolved(ONE_ROW.replace('["local"]', method) + more, settings, tmp_path)


# --- how it ends -------------------------------------------------------------------------------------------


def test_a_comparison_with_a_failed_trial_says_how_to_go_on_and_that_command_does(invoke, calls):
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
    assert (calls["folder"].path, calls["workers"], calls["keep_models"]) == (folder, 2, True)
    # as many at a time as at the start
    assert calls["jobs"] == 1
    assert "missing" not in (folder / "table.csv").read_text()


def test_a_signal_leaves_what_is_finished(invoke, calls):
    calls.raises = Interrupted(signal.SIGTERM)
    result = invoke("--methods", "local", "--seeds", "0", "-c", QUICK)
    assert result.exit_code == 128 + signal.SIGTERM
    folder = calls["folder"].path
    again = f"`protosphere compare --resume {folder}`"
    assert result.stderr == f"stopped by SIGTERM; finished trials are kept, and {again} runs the others.\n"
    stopped = invoke("--resume", "latest", "--jobs", "2", "--trust").stderr
    assert f"and `protosphere compare --resume {folder} --jobs 2 --trust` runs the others." in stopped
