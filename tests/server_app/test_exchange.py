"""A round's exchange on a clock of its own: when it closes, whom it waits for, what it takes."""

import pytest
from flwr.app import Error, Message, RecordDict

from protosphere.core.errors import RunError
from protosphere.record.replies import Bytes
from protosphere.server_app.exchange import LATE, POLL, ReplyContext, exchange
from protosphere.wire.parts import PROTOTYPES
from tests.server_app.replies import (
    ROUND,
    evaluated,
    trained,
    upload,
)


def about(seconds, looks=1):
    """The server looks POLL[1] seconds after something has happened at the latest; `looks` such delays add up."""
    return pytest.approx(seconds + looks * POLL[1] / 2, abs=looks * POLL[1] / 2 + 1e-6)


# --- when an exchange closes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "how", "late", "took"),
    [
        # with the last reply; at `min_replies`; at the timeout
        ({3: 7.0, 0: 20.0, 1: 1.0}, {}, [], about(20)),
        ({0: 9.0, 1: 50.0, 2: 3.0}, {"min_replies": 2}, [1], about(9)),
        ({0: 5.0, 1: None, 2: 601.0}, {"timeout": 600.0}, [1, 2], about(600)),
        ({}, {}, [], 0),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_when_an_exchange_closes_and_who_was_late(ask, answers, how, late, took, trains):
    report = trained if trains else evaluated
    given = {p: None if seconds is None else (seconds, report(p)) for p, seconds in answers.items()}
    replies = ask(given, trains=trains, **how)
    assert ask.took == took
    assert [reply.partition for reply in replies] == sorted(answers)
    assert [reply.partition for reply in replies if reply.problem == LATE] == late
    for reply in replies:
        assert reply.valid == (reply.partition not in late)
        assert reply.trains == trains
        assert reply.valid or (reply.report is None and reply.size == Bytes())


def test_min_replies_counts_valid_replies_alone(ask):
    answers = {
        0: (1.0, trained(0, payload=upload(0, (0, 9)))),
        1: (2.0, trained(1, round=ROUND - 1)),
        2: (3.0, Error(2, "ValueError: boom")),
        4: (11.0, trained(4)),
        5: (400.0, trained(5)),
    }
    replies = ask(answers, min_replies=1)
    assert ask.took == about(11)
    assert [reply.valid for reply in replies] == [False, False, False, True, False]


def test_a_simulation_waits_for_all_whatever_min_replies_says(ask, script, monkeypatch):
    """Its workers answer in the order of the partitions, so the highest would never train."""
    monkeypatch.setattr(script.Grid, "simulated", True)
    replies = ask({partition: (1.0 + partition, trained(partition)) for partition in range(8)}, min_replies=4)
    assert [reply.partition for reply in replies if reply.valid] == list(range(8))
    assert ask.took == about(8)


# --- errors -----------------------------------------------------------------------------------------------

RAY = "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=42)\n  File app.py, line 3\n\x1b[31mValueError: boom 1\x1b[0m\n\n"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (Error(2, RAY), "ValueError: boom 1"),
        (Error(2, "<class 'ValueError'>:<'boom 1'>"), "<class 'ValueError'>:<'boom 1'>"),
        (Error(3, "Error: it may have expired."), "Error: it may have expired."),
        (Error(5, "Error: Node Unavailable — no heartbeat."), "Error: Node Unavailable — no heartbeat."),
        (Error(8), "unknown error"),
        (Error(2, "\x1b[0m \n"), "unknown error"),
    ],
)
def test_an_error_is_a_problem_with_a_readable_reason(ask, error, problem):
    replies = ask({0: (1.0, trained(0)), 1: (2.0, error)})
    assert (replies[1].partition, replies[1].report) == (1, None)
    assert replies[1].problem == f'an error came back: "{problem}"'
    assert not replies[1].valid
    assert not replies[1].dropped
    assert replies[0].valid
    assert ask.took == about(2)


def test_a_dead_worker_ends_a_simulated_run(ask, script, monkeypatch):
    monkeypatch.setattr(script.Grid, "simulated", True)
    with pytest.raises(RunError, match=r"process of client 7 died in round 5 .*Resume .*--cpus-per-client"):
        ask({2: trained(2), 7: Error(0, "ActorDiedError")})


def test_messages_that_flower_refuses_end_the_run(scripted):
    grid = scripted(lambda partition, message: None, (0, 1))
    grid.push_messages = lambda messages: []
    messages = [Message(RecordDict(), grid.nodes[p], "train") for p in (0, 1)]
    with pytest.raises(RunError, match="Flower took 0 of the 2 messages of round 5"):
        exchange(grid, messages, [0, 1], ReplyContext(5, (PROTOTYPES,), 4, 3, 1e6), min_replies=0, timeout=9)
