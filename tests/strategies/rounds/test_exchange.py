"""A round's exchange on a clock of its own: when it closes, whom it waits for, what it takes."""

import itertools

import pytest
from flwr.app import Error, Message, RecordDict

from federation.wire.sizes import wire_bytes
from runs.round import Bytes, RunError
from strategies.rounds.exchange import LATE, POLL, UNSENT, exchange
from tests.strategies.rounds.replies import (
    LIMITS,
    ROUND,
    encode_report,
    evaluated,
    trained,
    upload,
)


def about(seconds, looks=1):
    """The server looks POLL[1] seconds after something has happened at the latest; `looks` such delays add up."""
    return pytest.approx(seconds + looks * POLL[1] / 2, abs=looks * POLL[1] / 2 + 1e-6)


# --- when a round closes --------------------------------------------------------------------------------


def test_round_closes_with_the_last_train_reply(ask):
    replies = ask({3: (7.0, trained(3)), 0: (20.0, trained(0)), 1: (1.0, trained(1))})
    assert ask.took == about(20)
    assert [reply.partition for reply in replies] == [0, 1, 3]
    assert all(reply.valid and reply.trains for reply in replies)


def test_round_closes_at_min_replies(ask):
    replies = ask({0: (9.0, trained(0)), 1: (50.0, trained(1)), 2: (3.0, trained(2))}, min_replies=2)
    assert ask.took == about(9)
    assert [reply.problem for reply in replies] == ["", LATE, ""]


def test_min_replies_counts_valid_train_replies_alone(ask):
    answers = {
        0: (1.0, trained(0, payload=upload(0, (0, 9)))),
        1: (2.0, trained(1, round=ROUND - 1)),
        2: (3.0, Error(2, "ValueError: boom")),
        3: (4.0, evaluated(3)),
        4: (11.0, trained(4)),
        5: (400.0, trained(5)),
    }
    replies = ask(answers, evaluate_only=(3,), min_replies=1)
    assert ask.took == about(11)
    assert [reply.valid for reply in replies] == [False, False, False, True, True, False]


def test_round_closes_at_the_timeout_and_names_who_is_missing(ask):
    replies = ask({0: (5.0, trained(0)), 1: None, 2: (601.0, trained(2))}, timeout=600.0)
    assert ask.took == about(600)
    assert {reply.partition: reply.problem for reply in replies} == {0: "", 1: LATE, 2: LATE}
    assert all(reply.report is None and reply.size == Bytes() for reply in replies[1:])


def test_nothing_to_send_needs_no_wait(ask):
    assert ask({}) == []
    assert ask.took == 0


# --- evaluate-only replies --------------------------------------------------------------------------------


def test_evaluate_only_replies_get_patience_after_training(ask):
    answers = {0: (2.0, trained(0)), 1: (31.0, evaluated(1)), 2: None}
    replies = ask(answers, evaluate_only=(1, 2), patience=30.0)
    assert [reply.problem for reply in replies] == ["", "", LATE]
    assert ask.took == about(31 + 30, looks=2)


def test_evaluate_only_replies_get_as_long_as_training_took(ask):
    answers = {0: (100.0, trained(0)), 1: (190.0, evaluated(1)), 2: (285.0, evaluated(2)), 3: (450.0, evaluated(3))}
    replies = ask(answers, evaluate_only=(1, 2, 3), patience=5.0)
    # each arrival gives the others another hundred seconds: 190 is in time, so 285 is, but 450 is not
    assert [reply.problem for reply in replies] == ["", "", "", LATE]


def test_evaluate_only_replies_never_take_longer_than_timeout_and_patience(ask):
    answers = {0: (500.0, trained(0)), **{p: (500.0 + 40 * p, evaluated(p)) for p in range(1, 9)}}
    replies = ask(answers, evaluate_only=range(1, 9), timeout=600.0, patience=30.0)
    assert [reply.partition for reply in replies if reply.problem == LATE] == [4, 5, 6, 7, 8]
    assert ask.took == about(630)


def test_evaluate_only_replies_before_training_ends_are_taken(ask):
    replies = ask({0: (50.0, trained(0)), 1: (0.0, evaluated(1))}, evaluate_only=(1,), patience=1.0)
    assert ask.took == about(50)
    assert replies[1].report == evaluated(1)


def test_a_client_known_silent_is_not_waited_for(ask):
    answers = {0: (2.0, trained(0)), 1: None, 2: (1.0, evaluated(2))}
    replies = ask(answers, evaluate_only=(1, 2), not_waited_for={1, 2})
    assert ask.took == about(2)
    # but what it says in time is taken
    assert [reply.problem for reply in replies] == ["", LATE, ""]


def test_a_silent_client_that_is_to_train_is_waited_for(ask):
    replies = ask({0: (2.0, trained(0)), 1: (90.0, trained(1))}, not_waited_for={1})
    assert ask.took == about(90)
    assert replies[1].valid


def test_where_nobody_trains_evaluation_gets_the_round_timeout(ask):
    """The evaluation that ends a run: a slow client has no other to hide behind."""
    replies = ask({0: (1.0, evaluated(0)), 1: (200.0, evaluated(1))}, evaluate_only=(0, 1), patience=30.0)
    assert [reply.problem for reply in replies] == ["", ""]
    assert ask.took == about(200)
    ask({0: None}, evaluate_only=(0,), timeout=600.0, patience=30.0)
    assert ask.took == about(600)


def test_a_late_train_reply_counts_while_others_are_waited_for(ask):
    answers = {0: (1.0, trained(0)), 1: (15.0, trained(1)), 2: (20.0, evaluated(2))}
    replies = ask(answers, evaluate_only=(2,), min_replies=1)
    assert [reply.valid for reply in replies] == [True, True, True]
    assert ask.took == about(20)


# --- errors -----------------------------------------------------------------------------------------------

RAY = "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=42)\n  File app.py, line 3\n\x1b[31mValueError: boom 1\x1b[0m\n\n"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (Error(2, RAY), "ValueError: boom 1"),
        (Error(2, "<class 'ValueError'>:<'boom 1'>"), "<class 'ValueError'>:<'boom 1'>"),
        (
            Error(3, "Error: Message Unavailable - it may have expired."),
            "Error: Message Unavailable - it may have expired.",
        ),
        (Error(5, "Error: Node Unavailable — no heartbeat."), "Error: Node Unavailable — no heartbeat."),
        (Error(8, "ClientApp stopped responding."), "ClientApp stopped responding."),
        (Error(8), "unknown error"),
        (Error(2, "\x1b[0m \n"), "unknown error"),
    ],
)
def test_an_error_is_a_problem_with_a_readable_reason(ask, error, problem):
    replies = ask({0: (1.0, trained(0)), 1: (2.0, error)})
    assert (replies[1].partition, replies[1].problem, replies[1].report) == (1, problem, None)
    assert not replies[1].valid
    assert not replies[1].dropped
    assert replies[0].valid
    assert ask.took == about(2)


def test_a_dead_worker_ends_a_simulated_run(ask, script, monkeypatch):
    monkeypatch.setattr(script.Grid, "simulated", True)
    with pytest.raises(RunError, match=r"process of client 7 died in round 5 .*Resume .*--cpus-per-client"):
        ask({2: trained(2), 7: Error(0, "ActorDiedError")})


def test_nodes_that_have_left_are_named(ask, script):
    answers = {0: script.LEFT, 1: trained(1), 2: script.LEFT, 3: script.LEFT}
    replies = ask(answers, evaluate_only=(3,))
    assert [reply.problem for reply in replies] == [UNSENT, "", UNSENT, UNSENT]
    assert [reply.trains for reply in replies] == [True, True, True, False]
    assert ask.took == 0


def test_messages_that_flower_refuses_end_the_run(scripted):
    grid = scripted(lambda partition, message: None, (0, 1))
    grid.push_messages = lambda messages: []
    messages = [Message(RecordDict(), grid.nodes[p], "train") for p in (0, 1)]
    with pytest.raises(RunError, match="Flower took 0 of the 2 messages of round 5"):
        exchange(grid, messages, [0, 1], round_number=5, limits=LIMITS, min_replies=0, timeout=9, patience=1)


# --- sizes and order -----------------------------------------------------------------------------------------


def test_sizes_are_of_values_and_of_serialised_records(ask):
    (reply,) = ask({3: trained(3)})
    records = encode_report(trained(3))
    assert reply.size.payload == 2 * 3 * 4
    assert reply.size.wire == wire_bytes(records)
    assert reply.size.evaluation == wire_bytes(records) - wire_bytes(encode_report(trained(3, evaluation=None)))
    assert reply.size + Bytes(1, 2, 3) == Bytes(reply.size.payload + 1, reply.size.wire + 2, reply.size.evaluation + 3)


def test_the_order_of_replies_does_not_matter(ask):
    seen = set()
    for delays in itertools.permutations((1.0, 5.0, 9.0)):
        replies = ask({p: (delay, trained(p)) for p, delay in enumerate(delays)} | {3: (4.0, Error(8, "gone"))})
        seen.add(
            tuple(
                (r.partition, r.problem, r.size, r.report and r.report.payload.vectors.numpy().tobytes())
                for r in replies
            )
        )
    assert len(seen) == 1
