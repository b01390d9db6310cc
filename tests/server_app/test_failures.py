"""Rounds that go wrong: who failed, what is kept, when the run gives up."""

from dataclasses import replace

import pytest
from flwr.app import Error

from protosphere.core.errors import RunError
from protosphere.server_app.exchange import LATE
from protosphere.strategies import load_method
from protosphere.strategies.contract import EVERYONE
from tests.payloads import lone, payloads


def lines_of(strategy):
    return strategy.folder.lines()


def test_rounds_without_enough_replies_in_a_row_end_the_run(federation):
    def fail(partition, round_number, kind, report):
        failing = round_number in (2, 3) or round_number >= 5
        return Error(2, f"ValueError: boom {partition}") if failing and kind == "train" else report

    group = federation(3, tamper=fail)
    words = r"^3 rounds in a row ended without enough valid replies.*client 0: an error came back: .ValueError: boom 0"
    with pytest.raises(RunError, match=words):
        group.start({"rounds": 20})
    # two in a row are forgiven; those of rounds 5, 6 and 7 are not
    assert [line["round"] for line in lines_of(group.strategy)] == list(range(8))
    assert group.strategy.folder.load_checkpoint()[1]["round"] == 7
    assert not (group.strategy.folder.path / "summary.json").exists()


def test_min_replies_makes_a_round_of_fewer_a_failed_one(federation, say):
    def fail(partition, round_number, kind, report):
        if not partition or kind == "evaluate":
            return report
        return replace(report, payload=None, training=None, problem=f"client {partition} is tired")

    group = federation(3, tamper=fail)
    with pytest.raises(RunError, match=r"^2 rounds in a row"):
        group.start({"rounds": 9, "min-replies": 2, "max-failed-rounds": 2})
    assert 'warning: round 1, client 2: it says: "client 2 is tired"' in say()
    # with one reply needed the same clients are good enough, and their only upload is used
    strategy = federation(3, tamper=fail).start({"rounds": 2, "min-replies": 1, "max-failed-rounds": 1})
    assert [line["training"]["valid"] for line in lines_of(strategy)[1:]] == [1, 1]
    assert lines_of(strategy)[1]["problems"] == {str(p): f'it says: "client {p} is tired"' for p in (1, 2)}


def test_a_silent_client_costs_one_wait_per_round(federation, clock):
    def silent(partition, round_number, kind, report):
        return None if partition == 2 else report

    strategy = federation(3, tamper=silent).start({"rounds": 2, "round-timeout": 50.0})
    assert lines_of(strategy)[1]["problems"] == {"2": LATE}
    # untrained models, and each training: who is late with that is not asked to evaluate
    assert clock.now == pytest.approx(150, abs=2)
    assert [line["evaluation"]["rules"]["local-prototypes"]["test"]["clients"] for line in lines_of(strategy)] == [
        2
    ] * 3

    clock.now = 0.0
    group = federation(3, tamper=silent, rows={0: (20, 4, 6), 1: (20, 4, 6), 2: (0, 4, 6)})
    group.start({"rounds": 5, "round-timeout": 50.0})
    # each evaluation, of which that of untrained models is the first
    assert clock.now == pytest.approx(300, abs=3)


# --- what a number format cannot hold -----------------------------------------------------------------------


def test_a_global_prototype_that_does_not_fit_ends_the_run_by_round_and_class(federation, monkeypatch):
    strategy = load_method("fedproto").server
    whole = strategy.aggregate

    def grown(self, uploads, state, server_round):
        outcome = whole(self, uploads, state, server_round)
        (prototypes,) = map(lone, outcome.downloads.values())
        vectors = prototypes.vectors.clone()
        vectors[2, 0] = 7e4 if server_round == 2 else 6e4
        return replace(outcome, downloads=payloads({EVERYONE: prototypes.with_vectors(vectors)}))

    monkeypatch.setattr(strategy, "aggregate", grown)
    group = federation(3, dtype="float16")
    with pytest.raises(
        RunError, match=r"^round 2: a prototype cannot be sent \(class 2\): .*holds 70000, beyond 65504"
    ):
        group.start({"strategy": "fedproto"})
    assert {instruction.round for *_, instruction in group.asked} == {0, 1, 2}
    assert [line["round"] for line in lines_of(group.strategy)] == [0, 1]
