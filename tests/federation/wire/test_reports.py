"""Reports and identities: round trips, and whatever a client may claim, only what can be recorded is decoded."""

import json
import math
import random
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from federation.wire import messages
from federation.wire.codec import Codec
from federation.wire.messages import MessageError, decode_identity, encode_identity
from federation.wire.payloads import Evaluation, Identity, Report, TrainingFigures
from prototypes.prototype_set import PrototypeSet
from runs.figures import of_client, over_clients, over_trainings

TRAINING = TrainingFigures(20, 8, {"cross-entropy": 1.5, "loss": 1.75}, 0.5, 3.0, 2.0, 1.25)
EVALUATION = Evaluation((5, 2), {"classifier": (3, 1), "majority-class": (0, 2)}, 0.125)
REPORT = Report(3, 7, None, TRAINING, EVALUATION, "", 1.5)
IDENTITY = Identity(
    2, 4, "resnet8", 78_042, 64, ("cat", "dog", "rabbit"), (0, 2), (90, 10, 30), ("accuracy", "size"), "K=3 d=64"
)
PROTOTYPES = PrototypeSet(torch.tensor([1]), torch.ones(1, 2))
CODEC = Codec(3, 2)
encode_report = partial(messages.encode_report, codec=CODEC)
decode_report = partial(messages.decode_report, codec=CODEC)


# --- reports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        replace(REPORT, training=None),
        replace(REPORT, evaluation=None, problem="client 3 diverged: über 9000"),
        replace(REPORT, remark="no ensemble answer: über nothing"),
        replace(REPORT, training=None, problem="client 3 diverged", remark="and more"),
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
    back, upload = decode_report(crossed(encode_report(replace(REPORT, payload=PROTOTYPES))))
    assert back == REPORT
    assert set(upload) == {"labels", "vectors"}
    # it is not looked at here: the evaluation beside a bad upload counts
    records = encode_report(REPORT)
    records["payload"] = ArrayRecord({"x": Array("O", (1,), "?", b"")})
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
    return RecordDict({**records, name: type(old)(kept | {field.replace("_", "-"): v for field, v in fields.items()})})


BAD_REPORTS = [
    (RecordDict(), "`report` is missing"),
    (RecordDict({"report": MetricRecord({})}), "MetricRecord"),
    (RecordDict({**encode_report(REPORT), "more": ConfigRecord({})}), "'more'"),
    (RecordDict({**encode_report(REPORT), "instruction": ConfigRecord({})}), "'instruction'"),
    (RecordDict({**encode_report(REPORT), "training": ConfigRecord({})}), "`training` is a ConfigRecord"),
    (RecordDict({**encode_report(REPORT), "evaluation": ArrayRecord({})}), "`evaluation` is a ArrayRecord"),
    (RecordDict({**encode_report(REPORT), "payload": MetricRecord({})}), "`payload` is a MetricRecord"),
    *[
        (changed(encode_report(REPORT), "report", **fields), named)
        for fields, named in [
            ({"partition": 3.0}, "`partition`"),
            ({"partition": True}, "`partition`"),
            ({"partition": [3]}, "`partition`"),
            ({"round": "7"}, "`round`"),
            ({"codec": b"K=3"}, "`codec`"),
            ({"codec": 3}, "`codec`"),
            ({"codec": ""}, "another codec"),
            ({"problem": b"x"}, "`problem`"),
            ({"problem": "two\nlines"}, "`problem`"),
            ({"problem": "\x1b[2J"}, "`problem`"),
            ({"problem": "x" * 1001}, "`problem`"),
            ({"remark": b"x"}, "`remark`"),
            ({"remark": ["x"]}, "`remark`"),
            ({"remark": "two\nlines"}, "`remark`"),
            ({"remark": "\x1b[2J"}, "`remark`"),
            ({"remark": "x" * 1001}, "`remark`"),
            ({"seconds": 1}, "`seconds`"),
            ({"seconds": math.nan}, "`seconds`"),
            ({"seconds": math.inf}, "`seconds`"),
            ({"seconds": -1.0}, "`seconds`"),
            ({"parts": "loss"}, "`parts`"),
            ({"parts": [1, 2]}, "`parts`"),
            ({"parts": [b"a", b"b"]}, "`parts`"),
            ({"parts": ["loss", "loss"]}, "`parts`"),
            ({"parts": ["a\n", "b"]}, "`parts`"),
            ({"parts": ["x" * 1001, "b"]}, "`parts`"),
            ({"parts": [str(i) for i in range(65)]}, "`parts`"),
            ({"parts": ["loss"]}, "length"),
            ({"parts": []}, "length"),
            ({"more": 1}, "more"),
        ]
    ],
    (changed(encode_report(REPORT), "report", "seconds"), "seconds"),
    (changed(encode_report(REPORT), "report", "codec"), "codec"),
    *[
        (changed(encode_report(REPORT), "training", **fields), named)
        for fields, named in [
            ({"counts": [0, 8]}, "no row"),
            ({"counts": [-1, 8]}, "`counts`"),
            ({"counts": [20, -8]}, "`counts`"),
            ({"counts": [20.0, 8.0]}, "`counts`"),
            ({"counts": [20]}, "`counts`"),
            ({"counts": 20}, "`counts`"),
            ({"figures": [0.5, 3.0, 2.0]}, "length"),
            ({"figures": [0.5, 3.0, 2.0, math.nan]}, "`figures`"),
            ({"figures": [0.5, math.inf, 2.0, 1.0]}, "`figures`"),
            ({"figures": [0.5, 1e300, 2.0, 1.0]}, "`figures`"),
            ({"figures": [-0.5, 3.0, 2.0, 1.0]}, "negative"),
            ({"figures": 0.5}, "`figures`"),
            ({"figures": []}, "length"),
            ({"parts": [1.5, math.nan]}, "`parts`"),
            ({"parts": [1.5, -math.inf]}, "`parts`"),
            ({"parts": [1.5, -1e300]}, "`parts`"),
            ({"parts": [1.5]}, "length"),
            ({"more": 1}, "more"),
        ]
    ],
    (changed(encode_report(REPORT), "training", "parts"), "parts"),
    *[
        (changed(encode_report(REPORT), "evaluation", **fields), named)
        for fields, named in [
            ({"classifier": [6, 1]}, "`classifier` claims (6, 1) right of (5, 2)"),
            ({"classifier": [3, 3]}, "`classifier` claims (3, 3) right of (5, 2)"),
            ({"classifier": [-1, 1]}, "`classifier`"),
            ({"classifier": [3.0, 1.0]}, "`classifier`"),
            ({"classifier": [3]}, "`classifier`"),
            ({"classifier": [3, 1, 1]}, "`classifier` is [3, 1, 1], not 2 counts"),
            ({"rows": [5, 2, 9]}, "not 3 counts"),
            (
                {"rows": [5, 2, 9], "classifier": [3, 1, 10], "majority-class": [0, 0, 0]},
                "`classifier` claims (3, 1, 10) right of (5, 2, 9)",
            ),
            ({"rows": [5, 2, 9, 9], "classifier": [3, 1, 1, 1]}, "`rows` is [5, 2, 9, 9], not 2 or 3 counts"),
            ({"classifier": 3}, "`classifier`"),
            ({"rows": [-5, 2]}, "`rows`"),
            ({"rows": [5.0, 2.0]}, "`rows`"),
            ({"rows": 5}, "`rows`"),
            ({"seconds": math.nan}, "`seconds`"),
            ({"seconds": -1.0}, "`seconds`"),
            ({"seconds": [1.0]}, "`seconds`"),
            ({"two\nlines": [0, 0]}, "`rules`"),
            ({"x" * 1001: [0, 0]}, "`rules`"),
            ({str(i): [0, 0] for i in range(65)}, "`rules`"),
        ]
    ],
    (changed(encode_report(REPORT), "evaluation", "rows"), "`rows`"),
    (changed(encode_report(REPORT), "evaluation", "seconds"), "`seconds`"),
]


@pytest.mark.parametrize(("records", "named"), BAD_REPORTS)
def test_bad_reports(records, named, refused):
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


def test_what_a_client_says_in_words_is_sent_on_one_line_and_shortened(crossed):
    odd = replace(IDENTITY, model="a\tb", class_names=("c\n", "d", "e"), problem="x" * 5000)
    back = decode_identity(crossed(encode_identity(odd)))
    assert (back.model, back.class_names, back.problem) == ("a b", ("c ", "d", "e"), "x" * 1000)


BAD_IDENTITIES = [
    (RecordDict(), "`identity` is missing"),
    (RecordDict({"identity": MetricRecord({"partition": 1})}), "MetricRecord"),
    (RecordDict({**encode_identity(IDENTITY), "report": ConfigRecord({})}), "'report'"),
    (changed(encode_identity(IDENTITY), "identity", "model"), "model"),
    (changed(encode_identity(IDENTITY), "identity", "codec"), "codec"),
    (changed(encode_identity(IDENTITY), "identity", more=1), "more"),
    *[
        (RecordDict({"identity": ConfigRecord(dict(encode_identity(IDENTITY)["identity"]) | fields)}), named)
        for fields, named in [
            ({"partition": 2.0}, "`partition`"),
            ({"partition": True}, "`partition`"),
            ({"partitions": -1}, "`partitions`"),
            ({"parameters": -1}, "`parameters`"),
            ({"feature_dim": -2}, "`feature_dim`"),
            ({"feature_dim": "64"}, "`feature_dim`"),
            ({"rows": [90, 10]}, "`rows`"),
            ({"rows": [90, 10, 30, 40, 50]}, "not 3 or 4 counts"),
            ({"rows": [90, 10, 30, 29]}, "fewer test rows of all classes than of its own"),
            ({"domain": 3}, "`domain`"),
            ({"domain": "two\nlines"}, "`domain`"),
            ({"rows": [90, 10, 30, 2**31]}, "none has more than 2147483647"),
            ({"rows": [90, 10, -1]}, "`rows`"),
            ({"rows": [90.0, 10.0, 30.0]}, "`rows`"),
            ({"rows": [True, True, False]}, "`rows`"),
            ({"rows": ["90", "10", "30"]}, "`rows`"),
            ({"rows": 90}, "`rows`"),
            ({"rows": [2**31, 10, 30]}, "none has more than 2147483647"),
            ({"rows": [90, 10, 2**62]}, "none has more than 2147483647"),
            ({"rows": [1, 10, 30]}, "each class needs a training row"),
            ({"rows": [0, 10, 30]}, "each class needs a training row"),
            ({"classes": []}, "holds 0 classes"),
            ({"classes": ["0"]}, "`classes`"),
            ({"classes": [0.0]}, "`classes`"),
            ({"classes": [True]}, "`classes`"),
            ({"classes": [-1, 0]}, "`classes`"),
            ({"classes": [2, 0]}, "`classes`"),
            ({"classes": [0, 0]}, "`classes`"),
            ({"classes": [0, 3]}, "3 class names"),
            ({"class_names": [1, 2, 3]}, "`class_names`"),
            ({"class_names": [b"cat", b"dog", b"rabbit"]}, "`class_names`"),
            ({"class_names": ["cat", "dog\n", "rabbit"]}, "`class_names`"),
            ({"class_names": "cat"}, "`class_names`"),
            ({"discloses": [1]}, "`discloses`"),
            ({"model": "x" * 1001}, "`model`"),
            ({"model": 8}, "`model`"),
            ({"codec": 3}, "`codec`"),
            ({"codec": ["K=3"]}, "`codec`"),
            ({"codec": "K=3\n"}, "`codec`"),
            ({"codec": "x" * 1001}, "`codec`"),
            ({"problem": "x" * 100_000}, "`problem`"),
        ]
    ],
]


@pytest.mark.parametrize(("records", "named"), BAD_IDENTITIES)
def test_bad_identities(records, named, refused):
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
    for _ in range(4000):
        records = encode_report(replace(REPORT, payload=PROTOTYPES))
        for _ in range(draw.randint(1, 3)):
            name = draw.choice(["report", "training", "evaluation"])
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
        json.dumps(
            [over_trainings(trainings), over_clients(evaluations), of_client(report.evaluation)], allow_nan=False
        )
        json.dumps([report.problem, report.seconds, report.evaluation.seconds], allow_nan=False)
    assert 300 < decoded < 3700  # both ways were tried


def test_whatever_identity_decodes_can_be_kept():
    draw = random.Random(1)
    decoded = 0
    for _ in range(6000):
        records = encode_identity(IDENTITY)
        for _ in range(draw.randint(1, 2)):
            value = draw.choice(SCALARS + TEXTS)
            alike = [other for other in SCALARS + TEXTS if type(other) is type(value)]
            new = draw.choice([value, [value], draw.choices(alike, k=draw.randint(0, 5))])
            records["identity"][draw.choice([*records["identity"], "x"])] = new
        try:
            identity = decode_identity(records)
        except MessageError:
            continue
        decoded += 1
        json.dumps(asdict(identity), allow_nan=False)
        assert all(
            text.isprintable() for text in (identity.model, identity.problem, identity.codec, *identity.class_names)
        )
    assert 100 < decoded < 5900
