"""Whole runs over the in-process grid: what a family learns, what differs by order, resumption, evaluation, trouble.

What holds for every method (bytes, resumption and workers to the bit, partial participation) is the contract's
(tests/strategies/test_contract.py), and every method's figures are golden (tests/strategies/test_golden.py).
"""

import math
from dataclasses import replace

import pytest

from protosphere.client_app import client as client_module
from protosphere.core.errors import RunError
from protosphere.core.settings import RULES
from protosphere.data.client_data import Rows
from protosphere.record.folder import RunFolder
from protosphere.server_app import strategy as rounds
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
    settings = {"rounds": 3, "models": "tiny"} | settings
    folder, rounds, strategy = run(settings), settings["rounds"], settings["strategy"]
    lines, method = metrics(folder), load_method(strategy)
    assert [line["round"] for line in lines if "evaluation" in line] == [*range(rounds + 1)]
    assert [line.get("last", False) for line in lines] == [False] * rounds + [True]
    for line in lines[1:]:
        assert (line["training"]["asked"], line["training"]["valid"], line["training"]["dropped"]) == (4, 4, 0)
        assert line["problems"] == {}
        assert sorted(line["clients"]) == ["0", "1", "2", "3"]
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


def outcome(folder):
    """The summary without what two equal runs may differ in."""
    found = summary(folder)
    found.pop("seconds")
    for name in ("resume", "rounds"):
        found["settings"].pop(name)
    return found


# --- resume -----------------------------------------------------------------------------------------------------


def test_a_finished_run_may_grow(run, metrics):
    settings = {"strategy": "fedproto"}
    whole = run(settings | {"rounds": 2})
    grown = run(settings | {"rounds": 1})
    assert metrics(grown)[-1]["last"]
    client_module._states.clear()
    assert run(settings | {"rounds": 2, "resume": grown.name}) == grown
    lines, expected = metrics(grown), metrics(whole)
    # where the shorter run ended it evaluated for the last time
    assert lines[1].pop("last")
    assert lines[1].pop("confusion")
    extra = lines[1]["bytes"].pop("evaluation_wire_up") - expected[1]["bytes"].pop("evaluation_wire_up")
    assert extra > 0
    assert lines == expected
    found, expected_outcome = outcome(grown), outcome(whole)
    found["bytes"]["evaluation_wire_up"] -= extra
    assert found == expected_outcome


def test_a_line_that_the_checkpoint_does_not_know_is_written_again(run, metrics, cut):
    settings = {"strategy": "fedproto", "rounds": 3}
    whole = run(settings)
    cut(settings, "pack", lambda state: state.last_round == 2, of=rounds)
    (folder,) = set(whole.parent.iterdir()) - {whole}
    assert len(metrics(folder)) == 3
    assert run(settings | {"resume": "latest"}) == folder
    assert metrics(folder) == metrics(whole)


# --- clients in trouble -----------------------------------------------------------------------------------------


def test_a_client_without_training_rows_takes_part_in_evaluation_only(run, metrics, monkeypatch):
    whole = client_module.client_data

    def client_data(spec, partition, *rest):
        data = whole(spec, partition, *rest)
        if partition != 2:
            return data
        return replace(data, train=Rows(data.train.inputs[:0], data.train.labels[:0]))

    monkeypatch.setattr(client_module, "client_data", client_data)
    folder = run({"strategy": "fedproto"})
    assert [line for line in run.said if line.startswith("  client 2") and "evaluation only" in line]
    lines = metrics(folder)
    for line in lines[1:]:
        assert (line["training"]["asked"], line["training"]["valid"]) == (3, 3)
        assert "training" not in line["clients"]["2"]
    rules = lines[-1]["evaluation"]["rules"]
    assert {rule: rules[rule]["test"]["clients"] for rule in RULES} == {
        "classifier": 4,
        "global-prototypes": 4,
        "local-prototypes": 3,
        "discriminant": 3,
    }


@pytest.mark.usefixtures("rate_of_client_1")
def test_a_client_that_diverges_is_named_and_the_run_goes_on(run, metrics):
    folder = run({"rounds": 3, "strategy": "fedproto", "local-epochs": 3})
    lines = metrics(folder)
    for line in lines[1:]:
        assert list(line["problems"]) == ["1"]
        assert "client 1 (tiny_perceptron) diverged in round" in line["problems"]["1"]
        assert (line["training"]["asked"], line["training"]["valid"]) == (4, 3)
        assert "training" not in line["clients"]["1"]
    stays = [line["clients"]["1"]["evaluation"]["local-prototypes"] for line in lines]
    assert stays == stays[:1] * 4  # its last good state is the initial one
    moves = [line["clients"]["0"]["training"]["loss"]["cross-entropy"] for line in lines[1:]]
    assert moves == sorted(moves, reverse=True)
    assert summary(folder)["problems"] == 3
    assert [line for line in run.said if "warning: round 2, client 1: " in line and "diverged" in line]


@pytest.fixture
def rate_of_client_1(monkeypatch):
    """Beyond reason."""
    whole = client_module.train

    def train(objective, state, data, stream, round_number):
        if stream[2] == 1:
            objective.settings = objective.settings.model_copy(update={"learning_rate": 1e6})
        return whole(objective, state, data, stream, round_number)

    monkeypatch.setattr(client_module, "train", train)


def test_a_run_whose_clients_all_diverge_ends(run):
    with pytest.raises(RunError, match=r"3 rounds in a row ended without enough valid replies.*diverged"):
        run({"strategy": "fedproto", "rounds": 9, "local-epochs": 3, "learning-rate": 1e6})
