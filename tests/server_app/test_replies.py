"""What a bad reply cannot do: be averaged, end the run, speak for another, or forge a line of the log."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from protosphere.server_app.exchange import LONGEST_PROBLEM, ReplyContext, exchange
from protosphere.wire.messages import encode_report
from protosphere.wire.parts import PROTOTYPES
from protosphere.wire.payloads import Identity
from tests.payloads import lone, payload
from tests.server_app.replies import (
    EVALUATION,
    ROUND,
    TRAINING,
    evaluated,
    trained,
    upload,
)


def test_a_reply_for_another_partition_or_round_is_not_used(ask):
    replies = ask({0: trained(1), 1: trained(1, round=ROUND + 1), 2: trained(2)})
    assert [reply.report for reply in replies[:2]] == [None, None]
    said = ["its node answers as partition 1", "its reply is one of round 6", ""]
    assert [reply.problem.partition(",")[0] for reply in replies] == said
    assert replies[0].size.payload == 2 * 3 * 4


def arrays(labels=(0, 2), vectors=None, label_type=np.int16, **more):
    vectors = np.ones((2, 3), np.float32) if vectors is None else vectors
    found = {"labels": np.array(labels, label_type), "vectors": vectors} | more
    return {f"prototypes.{name}": values for name, values in found.items()}


def forged(data, shape=(2, 3)):
    return Array("float32", shape, "numpy.ndarray", data)


BAD = np.ones((2, 3), np.float32)
# tests/wire has them all
BAD_UPLOADS = {
    "NaN": (arrays(vectors=BAD * np.float32("nan")), "the vector of class 0 holds a value that is not finite"),
    "pickle": (arrays(vectors=forged(b"\x80\x04garbage")), "`prototypes.vectors` cannot be read"),
}


@pytest.mark.parametrize(("samples", "is_taken"), [(7.0, True), (5.0, False), (None, False)])
def test_sums_may_be_as_many_times_longer_as_their_client_has_samples(ask, samples, is_taken):
    longest = float(lone(upload(0)).vectors.norm(dim=1).max())
    how = {"max_norm": longest / 6, "summed_samples": {} if samples is None else {0: samples}}
    (reply,) = ask({0: trained(0)}, **how)
    assert (reply.report.payload is not None) == is_taken


def with_payload(report, values):
    records = encode_report(replace(report, payload=None))
    records["arrays"] = ArrayRecord({n: v if isinstance(v, Array) else Array(v) for n, v in values.items()})
    return records


@pytest.mark.parametrize("name", BAD_UPLOADS)
def test_a_bad_upload_is_dropped_with_the_reason_and_the_figures_beside_it_count(ask, name):
    values, reason = BAD_UPLOADS[name]
    good, bad = ask({0: trained(0), 1: with_payload(trained(1), values)})
    assert good.valid
    assert bad.problem.startswith("upload dropped: ")
    assert re.search(reason, bad.problem)
    assert bad.dropped
    assert not bad.valid
    assert bad.report.payload is None
    assert bad.report.training == TRAINING
    assert bad.size.wire > 0
    if name == "NaN":
        assert bad.size.payload == values["prototypes.vectors"].size * 4


def test_an_upload_where_none_is_due_is_dropped(ask):
    (unasked,) = ask({0: replace(evaluated(0), payload=upload(0))}, trains=False)
    (failed,) = ask({1: trained(1, problem="client 1 diverged")})
    assert unasked.problem == "upload dropped: nothing was to be uploaded here"
    assert failed.dropped
    assert unasked.report.payload is None
    assert failed.report.payload is None
    (local,) = ask({0: trained(0)}, parts=())
    assert local.problem == "upload dropped: no upload was due in this round"


def test_a_missing_upload_is_a_problem_where_one_is_due_and_a_client_s_own_is_passed_on(ask):
    own = trained(4, payload=None, training=None, problem="client 4 diverged in round 5: loss")
    missing, failed = ask({0: trained(0, payload=None), 4: own})
    assert (missing.problem, missing.valid) == ("upload dropped: the upload is missing", False)
    assert (failed.valid, failed.dropped) == (False, False)
    assert failed.problem == 'it says: "client 4 diverged in round 5: loss"'
    (local,) = ask({0: trained(0, payload=None)}, parts=())
    assert local.valid


def records_with(record, kind, values):
    records = encode_report(replace(trained(1), evaluation=EVALUATION))
    records[record] = kind(dict(records[record]) | values)
    return records


# tests/wire has them all
BAD_REPLIES = {
    "weights": RecordDict({**encode_report(trained(1)), "weights": ArrayRecord({"w": Array(np.zeros(3))})}),
    "more right than rows": records_with("metrics", MetricRecord, {"correct.classifier": [7, 0]}),
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
    assert first.problem.startswith('it says: "fine [protosphere] results: /elsewhere [2J xxx')
    assert first.problem.endswith('…"')
    assert len(first.problem) <= LONGEST_PROBLEM + len(" ...")
    assert second.problem == 'it says: "unknown error"'
    assert not second.valid
    assert third.problem == 'an error came back: "ValueError: [2Jend"'
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
    replies = exchange(grid, messages, [0, 1], ReplyContext(5, (PROTOTYPES,), 4, 3, 1e6), min_replies=0, timeout=9)
    assert [reply.partition for reply in replies] == [0, 1]
    assert all(reply.valid for reply in replies)


def test_an_upload_for_a_class_that_the_client_does_not_hold_is_dropped(federation):
    def change(partition, number, kind, report):
        if partition != 1 or report.payload is None or number != 2:
            return report
        own = lone(report.payload)
        # as when a bit of a label turns over on the way
        other = next(label for label in range(4) if label not in clients.held[1])
        labels = torch.tensor([*own.labels[:-1], other]).sort().values
        return replace(report, payload=payload(replace(own, labels=labels)))

    clients = federation(tamper=change, held={0: (0, 1, 2, 3), 1: (0, 2), 2: (1,), 3: (2, 3)})
    lines = clients.start({"rounds": 3}).folder.lines()
    assert [line["training"]["dropped"] for line in lines[1:]] == [0, 1, 0]
    assert lines[2]["problems"] == {
        "1": "upload dropped: it holds class 'b', of which the client has no training sample",
    }
    assert "training" in lines[2]["clients"]["1"], "the rest of its reply counts"


def test_an_evaluation_by_a_rule_that_is_not_the_methods_is_dropped_and_the_rest_counts(federation):
    def change(partition, number, kind, report):
        if partition or report.evaluation is None:
            return report
        correct = report.evaluation.correct | {"the-best": report.evaluation.correct["local-prototypes"]}
        return replace(report, evaluation=replace(report.evaluation, correct=correct))

    lines = federation(tamper=change).start({"rounds": 2}).folder.lines()
    assert all("the-best" not in line["evaluation"]["rules"] for line in lines)
    assert lines[1]["problems"] == {
        "0": "evaluation dropped: it has the rule 'the-best', which the method does not name in its `rules`"
    }
    assert [line["training"]["dropped"] for line in lines[1:]] == [0, 0]
    assert "local-prototypes" in lines[1]["evaluation"]["rules"]


@pytest.mark.parametrize(("trains", "words"), [(True, "evaluation dropped"), (False, "training figures dropped")])
def test_figures_that_the_message_did_not_ask_for_are_dropped(ask, trains, words):
    both = replace(trained(0, payload=upload(0) if trains else None), evaluation=EVALUATION)
    (reply,) = ask({0: both}, trains=trains)
    assert reply.refused == f"{words}: nobody asked"
    assert (reply.report.evaluation is None, reply.report.training is None) == (trains, not trains)
    assert reply.valid


def test_an_area_under_the_roc_curve_that_nobody_asked_for_does_not_count(ask):
    report = replace(evaluated(1), evaluation=replace(EVALUATION, auc=1.0))
    for asked in (False, True):
        (reply,) = ask({1: report}, trains=False, measures_auc=asked)
        assert reply.report.evaluation.auc == (1.0 if asked else None)
        assert ("ROC curve dropped: nobody asked" in reply.refused) != asked


def test_of_a_reply_with_a_false_claim_the_ensemble_answer_does_not_count_either(ask):
    honest = Identity(0, 1, model="scripted", parameters=7, feature_dim=3, class_names=tuple("abcd"), rows=(20, 4, 6))
    answer = Array(np.full((2, 4), 0.25, np.float16))
    how = {"trains": False, "shared_labels": torch.tensor([0, 1]), "identities": {0: honest}}
    (taken,) = ask({0: replace(evaluated(0), ensemble=answer)}, **how)
    assert (taken.problem, taken.ensemble is None) == ("", False)
    how["identities"] = {0: replace(honest, rows=(20, 4, 5))}
    (dropped,) = ask({0: replace(evaluated(0), ensemble=answer)}, **how)
    assert dropped.problem.startswith("reply dropped: it claims")
    assert dropped.ensemble is None
