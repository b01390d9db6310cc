"""Mistakes in the words of `protosphere run`: one sentence each, and nothing is started."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("elsewhere")
SIMPLEX = 'strategy="protonorm" protonorm.alignment="simplex"'


# what a plan refuses is in tests/launch/test_run_config.py
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "spirale"], "unknown preset `spirale` (did you mean `spiral`?)"),
        (["-c", 'dataset="../nope"'], "data path '{parent}/nope' does not exist"),
        (["--results", "/proc/x"], "the results folder /proc/x cannot be written ("),
        (["--clients", "900", "-c", "min-samples=2"], "900 clients with min-samples = 2 each need at least 1800 rows"),
        (["-c", 'split="official"'], "data set 'digits' has no official test rows"),
        (
            ["-c", f"{SIMPLEX} feature-dim=8"],
            "`protonorm.alignment` is simplex",
        ),
        (["--resume", "latest"], 'setting `resume` is "latest", but {here}/home/results holds no run'),
        (["--cpus-per-client", "0"], "--cpus-per-client is 0, but this machine has 4"),
        (["--workers", "2"], "--workers goes without --flower"),
        (["--ray", "127.0.0.1:1"], "--ray is 127.0.0.1:1, but nothing answers there"),
        (["--ray", "ray://127.0.0.1:1"], "--ray is 'ray://127.0.0.1:1', but it is the HOST:PORT"),
        (["-c", "nope.toml"], "the settings file nope.toml cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(arguments, words, invoke, launched, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    here = Path.cwd()
    before = sorted(here.rglob("*"))
    result = invoke(*arguments)
    assert result.stderr.startswith(words.format(here=here, parent=here.parent))
    assert result.stderr.count("\n") == 1
    assert (result.exit_code, result.stdout) == (2, "")
    assert launched == {}, "nothing was started"
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpus-per-client", "1"], "--cpus-per-client and --gpus-per-client are Ray's: give --flower"),
        (["--gpus-per-client", "0"], "--cpus-per-client and --gpus-per-client are Ray's: give --flower"),
        (["--ray", "127.0.0.1:1"], "--ray is the cluster of Flower's simulation: give --flower"),
        (["--workers", "0"], "--workers is 0, but a run needs at least 1."),
        (["--flower", "--engine", "cohort"], "--engine goes without --flower"),
        (["--cohort-size", "3"], "--cohort-size goes with --engine cohort."),
        (["--engine", "loop", "--cohort-size", "3"], "--cohort-size goes with"),
        (["--engine", "cohort", "--workers", "2"], "--engine cohort trains clients in one process"),
        (["--engine", "cohort", "--cohort-size", "0"], "--cohort-size is 0, but a step needs"),
    ],
)
def test_a_flag_that_would_do_nothing_in_process_is_refused(here, arguments, words):
    result = here(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(words)
