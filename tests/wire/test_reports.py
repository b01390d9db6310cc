"""Reports and identities: round trips, and whatever a client may claim, only what can be recorded is decoded."""

import json
import math
import random
from dataclasses import asdict, replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.metrics_lines import of_client, over_clients, over_trainings
from protosphere.wire.messages import MessageError, decode_identity, decode_report, encode_identity, encode_report
from protosphere.wire.payloads import Evaluation, Identity, Report, TrainingFigures

TRAINING = TrainingFigures(20, 8, {"cross-entropy": 1.5, "loss": 1.75}, 0.5, 3.0, 2.0, 1.25)
EVALUATION = Evaluation((5, 2), {"classifier": (3, 1), "majority-class": (0, 2)}, 0.125)
REPORT = Report(3, 7, None, TRAINING, EVALUATION, "", 1.5)
IDENTITY = Identity(
    2, 4, "resnet8", 78_042, 64, ("cat", "dog", "rabbit"), (0, 2), (90, 10, 30), ("accuracy", "size"), "a1b2", "c3d4"
)
PROTOTYPES = PrototypeSet(torch.tensor([1]), torch.ones(1, 2))


# --- reports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        replace(REPORT, training=None),
        replace(REPORT, evaluation=None, problem="client 3 diverged: über 9000", remark="and more"),
        Report(0, 1),
        replace(REPORT, training=TrainingFigures(1, 0)),
        replace(REPORT, evaluation=Evaluation((0, 0), {})),
        replace(REPORT, evaluation=Evaluation((5, 0), {"classifier": (5, 0)})),
        # as many names as are allowed
        replace(REPORT, training=replace(TRAINING, parts={str(i): 0.0 for i in range(64)})),
        replace(REPORT, evaluation=Evaluation((5, 2), {str(i): (5, 2) for i in range(64)})),
        replace(REPORT, evaluation=Evaluation((5, 0, 30), {"classifier": (5, 0, 7), "majority-class": (2, 0, 3)})),
        # parts of a loss may be negative
        replace(REPORT, training=replace(TRAINING, parts={"entropy": -2.5})),
    ],
)
def test_a_report_crosses_unchanged(report, crossed):
    back, upload = decode_report(crossed(encode_report(report)))
    assert back == report
    assert upload is None


def test_an_upload_comes_back_undecoded(crossed):
    back, upload = decode_report(crossed(encode_report(replace(REPORT, payload={"prototypes": PROTOTYPES}))))
    assert back == REPORT
    assert set(upload) == {"prototypes.labels", "prototypes.vectors"}
    # it is not looked at here: the evaluation beside a bad upload counts
    records = encode_report(REPORT)
    records["arrays"] = ArrayRecord({"x": Array("O", (1,), "?", b"")})
    assert decode_report(records)[0] == REPORT


@pytest.mark.parametrize("name", ["problem", "remark"])
def test_a_problem_is_sent_on_one_line_and_shortened(name, crossed):
    back, _ = decode_report(crossed(encode_report(Report(0, 1, **{name: "one\ntwo\x1b[31m" + "x" * 5000}))))
    text = getattr(back, name)
    assert text.startswith("one two [31mxxx")
    assert len(text) == 1000
    assert replace(back, **{name: ""}) == Report(0, 1)


def test_a_ratio_over_a_vanished_gradient_does_not_cost_the_report(crossed):
    report = replace(REPORT, training=replace(TRAINING, gradient_ratio=math.inf))
    assert decode_report(crossed(encode_report(report)))[0].training.gradient_ratio == 1e100


def changed(records, name, *without, **fields):
    """The records with fields of one record replaced, or left out."""
    old = records[name]
    kept = {field: value for field, value in old.items() if field not in without}
    return RecordDict({**records, name: type(old)(kept | fields)})


LONG = "x" * 1001
NAMES = tuple(str(number) for number in range(65))  # one more than is allowed
NOT_FINITE = (math.nan, math.inf, -math.inf, 1e300)
# record -> (field, words of the reason, values that are refused)
BAD_FIELDS = {
    "config": [
        ("partition", "`partition`", [3.0, True, [3]]),
        ("round", "`round`", ["7"]),
        ("problem", "`problem`", [b"x", "two\nlines", "\x1b[2J", LONG]),
        ("remark", "`remark`", [b"x", ["x"], "two\nlines", "\x1b[2J", LONG]),
        ("seconds", "`seconds`", [1, math.nan, math.inf, -1.0]),
        ("more", "more", [1]),
    ],
    "metrics": [
        ("training.rows", "`training.rows`", [-1, 20.0, [20], 2**1000]),
        ("training.rows", "no row", [0]),
        ("training.steps", "`training.steps`", [-8, 8.0]),
        *((f"training.{name}", f"`training.{name}`", [*NOT_FINITE, [0.5]]) for name in ("seconds", "gradient_ratio")),
        *((f"training.{name}", "negative", [-0.5]) for name in ("target_norm", "prototype_norm")),
        ("training.more", "more", [1]),
        ("loss.loss", "`loss.loss`", [*NOT_FINITE, [1.5]]),
        ("loss.two\nlines", "`loss`", [0.5]),
        (f"loss.{LONG}", "`loss`", [0.5]),
        ("correct.classifier", "`correct.classifier`", [[6, -1], [3, 3, 1], [-1, 1], [3.0, 1.0], [3], 3]),
        ("correct.classifier", "claims", [[6, 1], [3, 3]]),
        ("evaluation.rows", "`evaluation.rows`", [[-5, 2], [5.0, 2.0], 5, [5, 2, 9, 9]]),
        ("evaluation.rows", "not 3 counts", [[5, 2, 9]]),
        ("evaluation.seconds", "seconds", [math.nan, -1.0, [1.0]]),
        ("evaluation.more", "more", [1]),
        ("correct.two\nlines", "`rules`", [[0, 0]]),
        (f"correct.{LONG}", "`rules`", [[0, 0]]),
        *((name, "which nobody agreed on", [1]) for name in ("more", "more.x", "confusion.counts")),
    ],
}
BAD_REPORTS = [
    (RecordDict(), "`config` is missing"),
    (RecordDict({"config": MetricRecord({})}), "MetricRecord"),
    *[
        (RecordDict({**encode_report(REPORT), name: record}), f"`{name}` is a {type(record).__name__}")
        for name, record in [("metrics", ConfigRecord()), ("metrics", ArrayRecord()), ("arrays", MetricRecord())]
    ],
    *[(RecordDict({**encode_report(REPORT), name: ConfigRecord({})}), name) for name in ("more", "instruction")],
    (changed(encode_report(REPORT), "config", "seconds"), "seconds"),
    *[
        (changed(encode_report(REPORT), "metrics", name), name.rpartition(".")[2])
        for name in ("training.rows", "training.steps", "training.seconds", "evaluation.rows", "evaluation.seconds")
    ],
    (
        changed(
            encode_report(REPORT),
            "metrics",
            **{"evaluation.rows": [5, 2, 9], "correct.classifier": [3, 1, 10], "correct.majority-class": [0, 0, 0]},
        ),
        "`classifier` claims (3, 1, 10) right of (5, 2, 9)",
    ),
    (changed(encode_report(REPORT), "metrics", **{f"correct.{name}": [0, 0] for name in NAMES}), "`rules`"),
    (changed(encode_report(REPORT), "metrics", **{f"loss.{name}": 0.0 for name in NAMES}), "`loss`"),
    *[
        (changed(encode_report(REPORT), name, **{field: value}), words)
        for name, fields in BAD_FIELDS.items()
        for field, words, values in fields
        for value in values
    ],
]


@pytest.mark.parametrize(("records", "named"), BAD_REPORTS)
def test_a_report_that_cannot_be_recorded_is_refused_by_the_field(records, named, refused):
    assert named in refused(decode_report, records)


# --- identities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY,
        Identity(-1, 0, problem="client None: there is no data"),
        Identity(0, 1),
        replace(IDENTITY, classes=(), rows=(0, 0, 12)),
        replace(IDENTITY, class_names=tuple(map(str, range(1000))), classes=tuple(range(1000)), rows=(1000, 0, 0)),
        replace(IDENTITY, rows=(2**31 - 1, 0, 0)),
        replace(IDENTITY, rows=(90, 10, 30, 200)),
        replace(IDENTITY, domain="Klinik für Röntgen"),
    ],
)
def test_an_identity_crosses_unchanged(identity, crossed):
    assert decode_identity(crossed(encode_identity(identity))) == identity


def test_a_name_crosses_beside_the_rest_and_makes_no_other_client(crossed):
    named = replace(IDENTITY, name="Klinik für Röntgen, Süd")
    assert decode_identity(crossed(encode_identity(named))).name == named.name
    # a site that is called anew is the same client
    assert named == IDENTITY
    assert decode_identity(crossed(encode_identity(IDENTITY))).name == ""


def test_what_a_client_says_in_words_is_sent_on_one_line_and_shortened(crossed):
    odd = replace(IDENTITY, model="a\tb", class_names=("c\n", "d", "e"), problem="x" * 5000)
    back = decode_identity(crossed(encode_identity(odd)))
    assert (back.model, back.class_names, back.problem) == ("a b", ("c ", "d", "e"), "x" * 1000)


# field, words of the reason, values that are refused
BAD_IDENTITY = [
    ("partition", "`partition`", [2.0, True]),
    ("partitions", "`partitions`", [-1]),
    ("parameters", "`parameters`", [-1]),
    ("feature_dim", "`feature_dim`", [-2, "64"]),
    ("domain", "`domain`", [3, "two\nlines"]),
    ("rows", "`rows`", [[90, 10], [90, 10, -1], [90.0, 10.0, 30.0], [True, True, False], 90, [90, 10, 30, 40, 50]]),
    ("rows", "none has more than 2147483647", [[90, 10, 30, 2**31], [2**31, 10, 30], [90, 10, 2**62]]),
    ("rows", "each class needs a training row", [[1, 10, 30], [0, 10, 30]]),
    ("rows", "fewer test rows of all classes than of its own", [[90, 10, 30, 29]]),
    ("classes", "`classes`", [["0"], [0.0], [True], [-1, 0], [2, 0], [0, 0]]),
    ("classes", "holds 0 classes", [[]]),
    ("classes", "3 class names", [[0, 3]]),
    ("class_counts", "`class_counts`", [[90], [0, 90], [45, 44], [45.0, 45.0], ["45", "45"], [95, -5]]),
    ("class_names", "`class_names`", [[1, 2, 3], [b"cat", b"dog", b"rabbit"], ["cat", "dog\n", "rabbit"], "cat"]),
    ("discloses", "`discloses`", [[1]]),
    ("model", "`model`", [LONG, 8]),
    ("name", "`name`", [3, ["a"], "a\n", "\u202ea", "x" * 61]),
    ("settings", "`settings`", [3, ["a"], "a\n", LONG]),
    ("encoder", "`encoder`", [3, ["a"], "a\n", LONG]),
    ("problem", "`problem`", ["x" * 100_000]),
    ("more", "more", [1]),
]
BAD_IDENTITIES = [
    (RecordDict(), "`config` is missing"),
    (RecordDict({"config": MetricRecord({"partition": 1})}), "MetricRecord"),
    (RecordDict({**encode_identity(IDENTITY), "metrics": MetricRecord({})}), "'metrics'"),
    *[(changed(encode_identity(IDENTITY), "config", field), field) for field in ("model", "settings", "name")],
    *[
        (RecordDict({"config": ConfigRecord(dict(encode_identity(IDENTITY)["config"]) | {name: value})}), said)
        for name, said, values in BAD_IDENTITY
        for value in values
    ],
]


@pytest.mark.parametrize(("records", "named"), BAD_IDENTITIES)
def test_an_identity_that_cannot_be_kept_is_refused_by_the_field(records, named, refused):
    assert named in refused(decode_identity, records)


# --- anything at all ----------------------------------------------------------------------------------------

SCALARS = [0, 1, 7, -1, 2**62, -(2**62), 0.0, 0.5, -1.5, 1e99, 1e101, 1e308, math.nan, math.inf]
TEXTS = ["", "loss", "a\nb", "\x1b[0m", "x" * 2000, "\u2028", b"", b"\xff", True, False]


def like(value, draw):
    """Random values of the same type, as many."""
    alike = [other for other in SCALARS + TEXTS if type(other) is type(value[0] if isinstance(value, list) else value)]
    return draw.choices(alike, k=len(value)) if isinstance(value, list) else draw.choice(alike)


def test_whatever_decodes_can_be_averaged_and_written_as_json():
    draw = random.Random(0)
    decoded = 0
    for _ in range(1500):
        records = encode_report(replace(REPORT, payload={"prototypes": PROTOTYPES}))
        for _ in range(draw.randint(1, 3)):
            name = draw.choice(["config", "metrics", "metrics"])
            field = draw.choice([*records[name], "x"])
            if draw.random() < 0.8 and field in records[name]:
                records[name][field] = like(records[name][field], draw)
            else:
                value = draw.choice(SCALARS)
                records[name][field] = draw.choice([value, [value], [value, value]])
        try:
            report, _ = decode_report(records)
        except MessageError:
            continue
        decoded += 1
        trainings, evaluations = {1: TRAINING, 2: report.training}, {1: EVALUATION, 2: report.evaluation}
        figures = [over_trainings(trainings), over_clients(evaluations, 20), of_client(report.evaluation)]
        json.dumps([*figures, report.problem, report.seconds, report.evaluation.seconds], allow_nan=False)
    assert 100 < decoded < 1400  # both ways were tried


def test_whatever_identity_decodes_can_be_kept():
    draw = random.Random(1)
    decoded = 0
    for _ in range(2000):
        records = encode_identity(IDENTITY)
        for _ in range(draw.randint(1, 2)):
            value = draw.choice(SCALARS + TEXTS)
            alike = [other for other in SCALARS + TEXTS if type(other) is type(value)]
            new = draw.choice([value, [value], draw.choices(alike, k=draw.randint(0, 5))])
            records["config"][draw.choice([*records["config"], "x"])] = new
        try:
            identity = decode_identity(records)
        except MessageError:
            continue
        decoded += 1
        json.dumps(asdict(identity), allow_nan=False)
        assert all(
            text.isprintable() for text in (identity.model, identity.problem, identity.settings, *identity.class_names)
        )
    assert 20 < decoded < 1980


def test_an_identity_names_no_more_classes_than_anybody_has(refused):
    names = tuple(map(str, range(2**16)))
    most = replace(IDENTITY, class_names=names)
    assert len(decode_identity(encode_identity(most)).class_names) == 2**16
    more = encode_identity(replace(most, class_names=(*names, "one more")))
    assert "has 65537 class names, at most 65536 are taken" in refused(decode_identity, more)
