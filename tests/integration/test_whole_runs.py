"""Whole runs over the in-process grid: what a family learns, what differs by order, resumption, evaluation, trouble.

What holds for every method (bytes, resumption and workers to the bit, partial participation) is the contract's
(tests/strategies/test_contract.py), and every method's figures are golden (tests/strategies/test_golden.py).
"""

import math

import pytest

from protosphere.core.errors import RunError
from protosphere.record.folder import RunFolder
from protosphere.strategies import load_method

# Methods of the sphere start with all features close together and are slower to tell classes apart, and GFPL and PFPL
# predict with their classifiers, which are slower than nearest prototypes, too. Seen: 0.80 to 0.93 after these rounds,
# over a floor of 0.4.
SLOWER = {"rounds": 4, "local-epochs": 3, "feature-dim": 64, "momentum": 0.9}
EXCHANGES = {"gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
# one of each way to learn
LEARNING = [
    {"strategy": "protonorm"},
    {"strategy": "tinyproto-ft", "tinyproto.sparsity-dim": 5, "wire-dtype": "float16"},
    SLOWER | {"strategy": "fedpagr", "rounds": 6},
    SLOWER | {"strategy": "pfpl"},
    SLOWER | {"strategy": "gfpl"} | EXCHANGES,
    SLOWER | {"strategy": "fedper"},
]


def summary(folder):
    return RunFolder(folder).summary()


# --- learning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", LEARNING, ids=lambda settings: settings["strategy"])
def test_every_family_learns_and_sums_it_up(run, metrics, settings):
    settings = {"rounds": 3, "models": "tiny_perceptron,tiny_cnn"} | settings
    folder, rounds, strategy = run(settings, clients=2), settings["rounds"], settings["strategy"]
    lines, method = metrics(folder), load_method(strategy)
    assert [line["round"] for line in lines if "evaluation" in line] == [*range(rounds + 1)]
    assert [line.get("last", False) for line in lines] == [False] * rounds + [True]
    for line in lines[1:]:
        assert (line["training"]["asked"], line["training"]["valid"], line["training"]["dropped"]) == (2, 2, 0)
        assert line["problems"] == {}
        assert sorted(line["clients"]) == ["0", "1"]
        assert math.isfinite(line["training"]["loss"]["loss"])
    # a rule of the method that has targets, received or its own
    rules = {*method.rules, "majority-class"}
    assert set(lines[-1]["evaluation"]["rules"]) == rules
    found = summary(folder)
    assert (found["status"], found["problems"], found["headline"]["rule"]) == ("completed", 0, method.inference)
    primary = found["rules"][method.inference]
    assert (found["headline"]["figure"], found["headline"]["accuracy"]) == ("selected", primary["selected"])
    # the digits are easy: untrained features already tell a few of them apart
    assert primary["final"] > max(0.6, found["floor"]["majority-class"])
    assert set(found["rules"]) == rules - {"majority-class"}
    assert all(figures["final"] <= figures["best"] for figures in found["rules"].values())


# --- clients in trouble -----------------------------------------------------------------------------------------


def test_a_run_whose_clients_all_diverge_ends(run):
    with pytest.raises(RunError, match=r"3 rounds in a row ended without enough valid replies.*diverged"):
        run({"strategy": "fedproto", "rounds": 9, "local-epochs": 3, "learning-rate": 1e6})
