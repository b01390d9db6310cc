"""A round's exchange on a clock of its own: when it closes, what it takes, and what a bad reply cannot do."""

import io
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from federation.messages import encode_report, wire_bytes
from federation.payloads import Evaluation, Limits, Report, TrainingFigures
from prototypes.prototype_set import PrototypeSet
from strategies.exchange import LATE, LONGEST_PROBLEM, POLL, UNSENT, Bytes, RunError, exchange

ROUND = 5
LIMITS = Limits(num_classes=4, dim=3, max_norm=1e6)
EVALUATION = Evaluation((6, 4), {"classifier": (3, 2)}, 0.1)
TRAINING = TrainingFigures(20, 2, {"loss": 1.0})


def upload(partition, classes=(0, 2)):
    vectors = torch.arange(3.0 * len(classes)).reshape(-1, 3) + partition
    return PrototypeSet(torch.tensor(classes), vectors)


def trained(partition, **changes):
    return replace(Report(partition, ROUND, upload(partition), TRAINING, EVALUATION), **changes)


def evaluated(partition):
    return Report(partition, ROUND, evaluation=EVALUATION)


@pytest.fixture
def ask(scripted, clock):
    """ask(answers, evaluate_only=..., **how) -> replies; answers: partition -> answer (see conftest) or Report."""

    def start(answers, evaluate_only=(), **how):
        def encode(content):
            return encode_report(content) if isinstance(content, Report) else content

        def answer(partition, message):
            given = answers[partition]
            return (given[0], encode(given[1])) if isinstance(given, tuple) else encode(given)

        start.grid = scripted(answer, answers)
        messages = [
            Message(RecordDict(), start.grid.nodes[p], "evaluate" if p in evaluate_only else "train") for p in answers
        ]
        patience = {"min_replies": 0, "timeout": 600.0, "patience": 30.0}
        began = clock.now
        replies = exchange(
            start.grid, messages, list(answers), round_number=ROUND, **({"limits": LIMITS} | patience | how)
        )
        start.took = clock.now - began
        return replies

    return start


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
    assert all(reply.message is None and reply.size == Bytes() for reply in replies[1:])


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


def test_a_dead_worker_ends_the_run(ask):
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


# --- what a reply may not do ----------------------------------------------------------------------------------


def test_a_reply_for_another_partition_or_round_is_not_used(ask):
    replies = ask({0: trained(1), 1: trained(1, round=ROUND + 1), 2: trained(2)})
    assert [reply.report for reply in replies[:2]] == [None, None]
    assert [reply.problem for reply in replies] == [
        "the reply says partition 1, round 5",
        "the reply says partition 1, round 6",
        "",
    ]
    assert [reply.partition for reply in replies] == [0, 1, 2]
    assert replies[0].size.payload == 2 * 3 * 4


def arrays(labels=(0, 2), vectors=None, label_type=np.int16, **more):
    vectors = np.ones((2, 3), np.float32) if vectors is None else vectors
    return {"labels": np.array(labels, label_type), "vectors": vectors} | more


def forged(data, shape=(2, 3)):
    return Array("float32", shape, "numpy.ndarray", data)


def header(shape):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def archive():
    buffer = io.BytesIO()
    np.savez(buffer, vectors=np.ones((2, 3), np.float32))
    return buffer.getvalue()


BAD = np.ones((2, 3), np.float32)
BAD_UPLOADS = {
    "NaN": (arrays(vectors=BAD * np.float32("nan")), "NaN or infinity"),
    "infinity": (arrays(vectors=BAD * np.float32("inf")), "NaN or infinity"),
    "norm": (arrays(vectors=BAD * 1e6), r"norm 1\.73e\+06, above `max-prototype-norm` 1e\+06"),
    "double": (arrays(vectors=BAD.astype(np.float64)), "float64, float32 was agreed"),
    "width": (arrays(vectors=np.ones((2, 4), np.float32)), r"shape \(2, 4\), at most 4 rows of 3"),
    "rank": (arrays(vectors=np.ones(6, np.float32)), r"shape \(6,\)"),
    "rows": (arrays(range(5), np.ones((5, 3), np.float32)), r"shape \(5, 3\)"),
    "too few labels": (arrays(labels=(0,)), "2 integers were due"),
    "foreign label": (arrays(labels=(0, 4)), "outside 0 to 3"),
    "negative label": (arrays(labels=(-1, 2)), "outside 0 to 3"),
    "twice the same": (arrays(labels=(2, 2)), "not unique and ascending"),
    "descending": (arrays(labels=(2, 0)), "not unique and ascending"),
    "label type": (arrays(label_type=np.float32), "labels are float32"),
    "counts unasked": (arrays(counts=np.array([1, 2])), r"\['counts', 'labels', 'vectors'\]"),
    "weights": (arrays(weights=np.zeros(9)), "weights"),
    "no labels": ({"vectors": BAD}, r"\['vectors'\] where"),
    "pickle": (arrays(vectors=forged(b"\x80\x04garbage")), "`vectors` cannot be read"),
    "zip": (arrays(vectors=forged(b"PK\x03\x04garbage")), "`vectors` cannot be read"),
    "archive": (arrays(vectors=forged(archive())), "`vectors` cannot be read"),
    "16 TB": (arrays(vectors=forged(header((10**12, 4)))), "`vectors` cannot be read"),
    "1e30 rows": (arrays(vectors=forged(header((10**30, 4)))), "`vectors` cannot be read"),
    "cut short": (arrays(vectors=forged(header((2, 3)) + b"123")), "`vectors` cannot be read"),
    "unknown dtype": (arrays(vectors=Array("evil", (2, 3), "numpy.ndarray", b"")), "`vectors` cannot be read"),
    "unknown form": (arrays(vectors=Array("float32", (2, 3), "torch", b"")), "`vectors` cannot be read"),
}


def with_payload(report, values):
    records = encode_report(replace(report, payload=None))
    records["payload"] = ArrayRecord({n: v if isinstance(v, Array) else Array(v) for n, v in values.items()})
    return records


@pytest.mark.parametrize("name", BAD_UPLOADS)
def test_a_bad_upload_is_dropped_with_the_reason_and_the_evaluation_beside_it_counts(ask, name):
    values, reason = BAD_UPLOADS[name]
    good, bad = ask({0: trained(0), 1: with_payload(trained(1), values)})
    assert good.valid
    assert bad.problem.startswith("upload dropped: ")
    assert re.search(reason, bad.problem)
    assert bad.dropped
    assert not bad.valid
    assert bad.report.payload is None
    assert bad.report.evaluation == EVALUATION
    assert bad.size.wire > bad.size.evaluation > 0


@pytest.mark.parametrize("name", ["NaN", "norm", "width", "foreign label"])
def test_bytes_of_a_bad_upload_count(ask, name):
    values, _ = BAD_UPLOADS[name]
    (bad,) = ask({1: with_payload(trained(1), values)})
    assert bad.size.payload == values["vectors"].size * 4


def test_bytes_claimed_beyond_those_that_came_do_not_count(ask):
    (bad,) = ask({1: with_payload(trained(1), arrays(vectors=forged(b"short", (10**12, 10**12))))})
    assert bad.size.payload <= len(b"short")


def test_an_upload_where_none_is_due_is_dropped(ask):
    answers = {0: replace(evaluated(0), payload=upload(0)), 1: trained(1, problem="client 1 diverged")}
    unasked, failed = ask(answers, evaluate_only=(0,))
    assert unasked.problem == "upload dropped: nothing was to be uploaded here"
    assert failed.dropped
    assert unasked.report.payload is None
    assert failed.report.payload is None
    (local,) = ask({0: trained(0)}, limits=None)
    assert local.problem == "upload dropped: this method uploads nothing"


def test_a_missing_upload_is_a_problem_where_one_is_due(ask):
    (missing,) = ask({0: trained(0, payload=None)})
    assert (missing.problem, missing.valid) == ("upload dropped: the prototypes are missing", False)
    (local,) = ask({0: trained(0, payload=None)}, limits=None)
    assert local.valid


def test_a_clients_own_problem_is_passed_on(ask):
    (failed,) = ask({4: trained(4, payload=None, training=None, problem="client 4 diverged in round 5: loss")})
    assert failed.problem == "client 4 diverged in round 5: loss"
    assert failed.report.evaluation == EVALUATION
    assert not failed.valid
    assert not failed.dropped


def records_with(header=None, training=None, evaluation=None, **more):
    records = encode_report(trained(1))
    if header:
        records["report"] = ConfigRecord(dict(records.config_records["report"]) | header)
    if training:
        records["training"] = MetricRecord(dict(records.metric_records["training"]) | training)
    if evaluation:
        records["evaluation"] = MetricRecord(dict(records.metric_records["evaluation"]) | evaluation)
    for name, record in more.items():
        records[name] = record
    return records


BAD_REPLIES = {
    "empty": RecordDict(),
    "weights": records_with(weights=ArrayRecord({"w": Array(np.zeros(3))})),
    "more figures": records_with(labels=MetricRecord({"y": [1, 2]})),
    "endless seconds": records_with({"seconds": float("inf")}),
    "no partition": records_with({"partition": "1"}),
    "parts are bytes": records_with({"parts": [b"loss"]}),
    "parts are numbers": records_with({"parts": [1]}),
    "parts too many": records_with({"parts": ["loss", "other"]}),
    "NaN loss": records_with(training={"parts": [float("nan")]}),
    "absurd loss": records_with(training={"parts": [1e308]}),
    "no rows": records_with(training={"counts": [0, 1]}),
    "negative rows": records_with(training={"counts": [-5, 1]}),
    "fractional rows": records_with(training={"counts": [1.5, 1.0]}),
    "no list": records_with(training={"figures": 1.0}),
    "more right than rows": records_with(evaluation={"classifier": [7, 0]}),
    "negative right": records_with(evaluation={"classifier": [-1, 0]}),
    "rows are one": records_with(evaluation={"rows": [6]}),
    "infinite rows": records_with(evaluation={"rows": [float("inf"), 1.0]}),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_reply_that_cannot_be_read_is_not_used(ask, name):
    good, bad = ask({0: trained(0), 1: BAD_REPLIES[name]})
    assert good.valid
    assert bad.problem
    assert bad.report is None
    assert not bad.valid


def test_a_problem_stays_one_short_line_without_control_codes(ask):
    forged_words = "fine\n[protosphere] results: /elsewhere\r\x1b[2J\x00" + "x" * 10_000
    (first, second, third) = ask(
        {
            0: trained(0, payload=None, problem=forged_words),
            1: trained(1, payload=None, problem="\n\t"),
            2: Error(2, "line\rValueError: \x1b[2Jend"),
        }
    )
    assert first.problem.startswith("fine [protosphere] results: /elsewhere [2J xxx")
    assert len(first.problem) <= LONGEST_PROBLEM + len(" ...")
    assert second.problem == "unknown error"
    assert not second.valid
    assert third.problem == "ValueError: [2Jend"
    assert all(reply.problem.isprintable() for reply in (first, second, third))


def test_strange_and_repeated_replies_are_ignored(ask, clock, monkeypatch, scripted):
    grid = scripted(lambda partition, message: (1.0, encode_report(trained(partition))), (0, 1))
    pull, kept = grid.pull_messages, []

    def twice(message_ids):
        arrived = pull(message_ids)
        kept.extend(arrived)
        strangers = []
        if arrived:
            stranger = Message(encode_report(trained(0)), reply_to=arrived[0])
            strangers = [stranger]
        return [*strangers, *kept, *kept]

    grid.pull_messages = twice
    messages = [Message(RecordDict(), grid.nodes[p], "train") for p in (0, 1)]
    replies = exchange(grid, messages, [0, 1], round_number=5, limits=LIMITS, min_replies=0, timeout=9, patience=1)
    assert [reply.partition for reply in replies] == [0, 1]
    assert all(reply.valid for reply in replies)


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
