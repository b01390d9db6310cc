"""Comparisons as they run: fair by seed, in processes of their own, cut and gone on with."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protosphere.comparison.execution import Processes, run_trials
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec, Entry
from protosphere.comparison.trials import expand
from protosphere.record.folder import RunFolder
from tests.integration.watched import alive, descendants
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"rounds": 2, "max-samples": 300, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 2}
DIGITS = (Entry("Digits", {"dataset": "digits"}),)
METHODS = (Entry("Local", {"strategy": "local"}), Entry("Norm", {"strategy": "protonorm"}))


def comparison(**changes):
    return ComparisonSpec(
        "test", **({"methods": METHODS, "datasets": DIGITS, "seeds": (0,), "settings": QUICK} | changes)
    )


# --- the same for every method of a row --------------------------------------------------------------------

FAIR = {"rounds": 3, "fraction-train": 0.5, "models": "tiny_perceptron,perceptron", "max-samples": 200}


@pytest.fixture
def told(run):
    """told(strategy, seed): who held what, how the initial models did, and who trained in each round."""

    def tell(strategy, seed):
        folder = run(FAIR | {"strategy": strategy, "seed": seed}, clients=6)
        roster = json.loads((folder / "roster.json").read_text())
        lines = RunFolder(folder).lines()
        first = lines[0]
        assert first["round"] == 0
        keys = ("partition", "model", "parameters", "rows", "classes")
        return {
            "roster": [{key: client[key] for key in keys} for client in roster],
            "initial": {p: client["evaluation"]["classifier"] for p, client in first["clients"].items()},
            "sampled": [sorted(p for p, c in line["clients"].items() if "training" in c) for line in lines[1:]],
        }

    return tell


def test_every_method_sees_the_same_clients_models_and_samples(told):
    """Which follows from the seed alone; only methods that build on other modules begin with other weights."""
    reference = told("local", 3)
    assert all(len(sampled) == 3 for sampled in reference["sampled"])
    assert len({tuple(sampled) for sampled in reference["sampled"]}) > 1, "samples differ by round"
    for strategy in ("protonorm", "pfpl"):
        assert told(strategy, 3) == reference, strategy
    gfpl = told("gfpl", 3)
    # the projection is a module of its own, beside the same extractor and classifier
    assert gfpl["initial"] == reference["initial"]
    assert gfpl["sampled"] == reference["sampled"]
    for name in ("roster", "initial", "sampled"):
        assert told("local", 4)[name] != reference[name], name


# --- cells in processes of their own -----------------------------------------------------------------------


@pytest.mark.integration
def test_trials_run_seed_by_seed_and_finished_ones_are_not_run_again(tmp_path):
    made = expand(comparison(seeds=(3, 1)), {}, {})
    folder = ComparisonFolder.create(comparison(), made, str(tmp_path))
    ended = run_trials(folder, made, Processes([{}]), print)
    assert [(each.trial.seed, each.reason) for each in ended] == [(3, ""), (3, ""), (1, ""), (1, "")]
    assert run_trials(folder, made, Processes([{}]), print) == []


LONG = """
methods = ["local", { label = "long", strategy = "fedproto", rounds = 5000 }]
datasets = ["digits"]
seeds = [0]

[settings]
rounds = 2
max-samples = 300
feature-dim = 12
models = "tiny_perceptron"
device = "cpu"
clients = 2
"""


@pytest.mark.integration
def test_a_signal_discards_the_cell_in_flight_and_a_resume_finishes(tmp_path, home):
    """The second cell is cut in the middle; nothing runs on, and what was finished is not run again."""
    (tmp_path / "long.toml").write_text(LONG)
    command = [sys.executable, "-m", "protosphere.cli.main", "compare", "--jobs", "1"]
    asked = [*command, str(tmp_path / "long.toml"), "--results", str(tmp_path / "results")]
    process = subprocess.Popen(asked, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not any("/5000 |" in p.read_text() for p in tmp_path.glob("results/*/trials/digits-long*/output.log")):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=PATIENCE)[0]
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert alive(started) == set()
    (place,) = (tmp_path / "results").iterdir()
    assert [path.name for path in (place / "trials").iterdir()] == ["digits-local-seed0"]
    assert list((home / "clients").iterdir()) == []
    folder = ComparisonFolder.find(str(place))
    _, made = folder.read()
    assert folder.run_of(made[0])
    assert folder.run_of(made[1]) is None
