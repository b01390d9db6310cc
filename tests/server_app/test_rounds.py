"""What all methods share on the server, with clients that are told what to say."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from protosphere.core.errors import RunError
from protosphere.server_app.checkpoint import pack
from protosphere.strategies import load_method
from protosphere.strategies.contract import EVERYONE, Outcome, ServerHalf
from tests.payloads import lone, payloads


def lines_of(strategy):
    return strategy.folder.lines()


def asked(federation, kind=None):
    return [(p, r) for p, r, was, _ in federation.asked if kind in (None, was)]


# --- sampling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "clients", "wanted"), [(1.0, 5, 5), (0.5, 5, 3), (0.5, 6, 3), (0.2, 7, 1), (0.01, 5, 1), (0.3, 5, 2)]
)
def test_a_round_asks_rho_m_clients_rounded_half_up_and_one_at_least(federation, fraction, clients, wanted):
    group = federation(clients)
    group.start({"fraction-train": fraction, "rounds": 2})
    per_round = Counter(r for _, r in asked(group, "train"))
    assert per_round == {1: wanted, 2: wanted}
    assert wanted == max(1, math.floor(fraction * clients + 0.5))


def test_only_clients_with_training_rows_train_and_the_others_evaluate(federation):
    rows = {p: (0 if p in (1, 4) else 20, 4, 6) for p in range(6)}
    group = federation(6, rows=rows)
    group.start({"fraction-train": 0.5, "rounds": 12})
    trained = asked(group, "train")
    # M counts those with training rows: round(0.5 * 4) of them
    assert set(Counter(r for _, r in trained).values()) == {2}
    assert {p for p, _ in trained} == {0, 2, 3, 5}
    assert Counter(p for p, _ in asked(group, "evaluate")) == dict.fromkeys(range(6), 13)


def test_sampling_depends_on_seed_and_round_alone(federation):
    def samples(settings, shuffle=False):
        group = federation(8)
        if shuffle:
            group.grid.nodes = dict(reversed([(p, 10**9 - 17 * p) for p in group.grid.nodes]))
        strategy = group.start({"fraction-train": 0.4, "rounds": 6} | settings)
        return {r: sorted(p for p, of in asked(group, "train") if of == r) for r in range(1, 7)}, strategy

    first, strategy = samples({})
    assert samples({}, shuffle=True)[0] == first
    assert samples({"strategy": "protonorm", "rounds": 9})[0] == first
    assert {r: strategy.sample(r) for r in (4, 2, 6)} == {r: first[r] for r in (4, 2, 6)}
    assert samples({"seed": 1})[0] != first
    assert len(set(map(tuple, first.values()))) > 1


# --- messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["all", "sampled"])
def test_a_client_trains_once_a_round_and_then_evaluates(federation, who):
    group = federation(6)
    group.start({"fraction-train": 0.5, "rounds": 4, "evaluate-clients": who})
    trained, evaluated = asked(group, "train"), asked(group, "evaluate")
    assert max(Counter(trained).values()) == max(Counter(evaluated).values()) == 1
    assert Counter(r for _, r in trained) == dict.fromkeys(range(1, 5), 3)
    assert Counter(r for _, r in evaluated) == dict.fromkeys(range(5), 6 if who == "all" else 3)
    order = [(r, kind) for _, r, kind, _ in group.asked]
    assert order == sorted(order, key=lambda step: (step[0], step[1] == "evaluate"))
    if who == "sampled":
        assert {p for p, r in evaluated if r == 4} == {p for p, r in trained if r == 4}


def test_a_line_holds_the_rounds_training_and_the_evaluation_of_what_it_left(federation):
    group = federation(3)
    strategy = group.start({"rounds": 2})
    lines = lines_of(strategy)
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert "training" not in lines[0]
    assert [line.get("last") for line in lines] == [None, None, True]
    reports = [group.report(p, 2, "train") for p in range(3)]
    mean = sum(report.training.parts["loss"] for report in reports) / 3
    assert lines[2]["training"]["loss"]["loss"] == pytest.approx(mean, rel=1e-12)
    reports = [group.report(p, 2, "evaluate") for p in range(3)]
    right = sum(report.evaluation.correct["local-prototypes"][0] for report in reports) / 18
    assert lines[2]["evaluation"]["rules"]["local-prototypes"]["test"]["mean"] == pytest.approx(right)
    assert strategy.result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(right)


def test_an_evaluation_brings_what_the_round_has_made(federation):
    group = federation(3)
    group.start({"rounds": 2})
    downloads = {(i.round, kind): i.payload for _, _, kind, i in group.asked}
    assert downloads[0, "evaluate"] is None
    assert downloads[1, "train"] is None
    assert torch.equal(lone(downloads[1, "evaluate"]).vectors, lone(downloads[2, "train"]).vectors)
    assert not torch.equal(lone(downloads[1, "evaluate"]).vectors, lone(downloads[2, "evaluate"]).vectors)


@pytest.mark.parametrize(
    ("dim", "dtype", "size"),
    [(11, "float32", 4 * 11), (3, "float16", 2 * 3)],
)
def test_bytes_are_those_of_the_formula(federation, dim, dtype, size):
    """size: bytes of one prototype's values."""
    held = {0: (0,), 1: (0, 2), 2: (2,), 3: (1, 2)}
    group = federation(4, held=held, dim=dim, dtype=dtype)
    strategy = group.start({"rounds": 3, "fraction-train": 0.5})
    known = set()
    for line in lines_of(strategy)[1:]:
        trained = [p for p, r in asked(group, "train") if r == line["round"]]
        # sum over the sampled of (K_i + K_r) s values, K_r the classes with a prototype when the round starts
        up, down = sum(len(held[p]) for p in trained), len(trained) * len(known)
        assert (line["bytes"]["payload_up"], line["bytes"]["payload_down"]) == (size * up, size * down)
        known |= {label for p in trained for label in held[p]}
        # what goes down to be evaluated with is no payload of the training
        assert line["bytes"]["evaluation_wire_down"] > size * 4 * len(known)
        assert line["bytes"]["evaluation_wire_up"] > 0
    first = lines_of(strategy)[0]["bytes"]
    assert first["payload_up"] == first["wire_up"] == first["payload_down"] == first["wire_down"] == 0
    total = json.loads((strategy.folder.path / "summary.json").read_text())["bytes"]
    assert total == {name: sum(line["bytes"].get(name, 0) for line in lines_of(strategy)) for name in total}


# --- prototypes -------------------------------------------------------------------------------------------


def test_the_order_of_replies_changes_no_bit(federation):
    def downloads(delay):
        group = federation(5, tamper=lambda p, r, kind, report: (delay(p, r), report))
        strategy = group.start({"rounds": 4, "strategy": "protonorm", "fraction-train": 0.6})
        said = [{name: value for name, value in line.items() if name != "time"} for line in lines_of(strategy)]
        return said, pack(strategy.state)[0]

    said, tensors = downloads(lambda p, r: 0.0)
    for delay in (lambda p, r: float(p), lambda p, r: float(10 - p), lambda p, r: float(7 * p * r % 5)):
        other, others = downloads(delay)
        assert other == said
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


class Broken(ServerHalf):
    """Makes a prototype that is not finite in round 2, and figures that JSON does not know."""

    def aggregate(self, uploads, state, server_round):
        prototypes = lone(uploads[0])
        if server_round == 2:
            prototypes = prototypes.with_vectors(prototypes.vectors / torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
        figures = {"infinite": math.inf, "not": math.nan, "word": "exact", "number": 3, "nothing": None}
        return Outcome(
            {"round": torch.tensor(server_round)}, payloads({EVERYONE: prototypes}), figures, ["mind the gap"]
        )


def broken(monkeypatch):
    method = load_method("fedproto")
    monkeypatch.setattr("protosphere.strategies.load_method", lambda name: replace(method, server=Broken))


def test_a_global_prototype_that_is_not_finite_ends_the_run_before_it_is_sent(federation, monkeypatch):
    broken(monkeypatch)
    group = federation(2)
    with pytest.raises(
        RunError, match=r"round 2: the global prototype of class 'c' is not finite.*start a new run with a lower"
    ):
        group.start({"rounds": 3})
    assert max(r for _, r in asked(group)) == 2
    assert [line["round"] for line in lines_of(group.strategy)] == [0, 1]
    tensors, meta = group.strategy.folder.load_checkpoint()
    assert meta["round"] == 1
    assert int(tensors["state/round"]) == 1
