"""Instructions, reports and identities: round trips over Flower's own serialisation, sizes by its own count, and each
field that is refused."""

import json
import math
import random
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.record.metrics_lines import of_client, over_clients, over_trainings
from protosphere.wire.arrays import Limits
from protosphere.wire.messages import (
    MessageError,
    count_bytes,
    decode_identity,
    decode_instruction,
    decode_report,
    encode_identity,
    encode_instruction,
    encode_report,
)
from protosphere.wire.parts import NOTHING, Exchange, Part
from protosphere.wire.payloads import Evaluation, Identity, Instruction, Report, TrainingFigures
from tests.payloads import payload
from tests.strategies.sets import same

K, D = 6, 4
TRAINING = TrainingFigures(20, 8, {"cross-entropy": 1.5, "loss": 1.75}, 0.5, 3.0, 2.0, 1.25)
EVALUATION = Evaluation((5, 2), {"classifier": (3, 1), "majority-class": (0, 2)}, 0.125)
REPORT = Report(3, 7, None, TRAINING, EVALUATION, "", 1.5)
IDENTITY = Identity(
    2, 4, "resnet8", 78_042, 64, ("cat", "dog", "rabbit"), (0, 2), (90, 10, 30), ("accuracy", "size"), "a1b2", "c3d4"
)
LONG = "x" * 1001


def prototypes(labels=(0, 2, 5)):
    vectors = torch.randn(len(labels), D, generator=torch.Generator().manual_seed(0))
    return payload(PrototypeSet(torch.tensor(labels, dtype=torch.int64), vectors))


def instructed(records, exchange=Exchange(), limits=Limits(100.0), trains=True):  # noqa: B008
    """As the client takes it."""
    return decode_instruction(records, exchange, K, D, limits, trains=trains)


def changed(records, name, /, *without, **fields):
    """The records with fields of one record replaced, or left out."""
    old = records[name]
    left = {field: value for field, value in old.items() if field not in without}
    return RecordDict({**records, name: type(old)(left | fields)})


# --- round trips --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [None, prototypes(), prototypes(())])
@pytest.mark.parametrize("constants", [{}, {"mu": 0.1 + 0.2, "zero": 0.0, "below": -5e-324, "most": 1e100}])
def test_an_instruction_crosses_unchanged_and_constants_to_the_bit_and_in_order(came, constants, crossed):
    sent = Instruction("20260101-120000-fedproto-digits", 12, came, 11, constants, last=True)
    back = instructed(crossed(encode_instruction(sent)))
    assert replace(back, payload=None) == replace(sent, payload=None)
    assert list(back.constants) == list(constants)
    assert same(back.payload, came)


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        Report(0, 1),
        replace(REPORT, training=None),
        replace(REPORT, evaluation=None, problem="client 3 diverged: über 9000"),
        replace(REPORT, evaluation=Evaluation((0, 0), {})),
        # as many names as are allowed; parts of a loss may be negative
        replace(REPORT, training=replace(TRAINING, parts={str(i): -2.5 for i in range(64)})),
        replace(REPORT, evaluation=Evaluation((5, 0), {"classifier": (5, 0)}, 0.0, 0.5, (1, 4))),
    ],
)
def test_a_report_crosses_unchanged(report, crossed):
    assert decode_report(crossed(encode_report(report))) == (report, None)


@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY,
        Identity(-1, 0, problem="client None: there is no data"),
        replace(IDENTITY, classes=(), rows=(0, 0, 12)),
        replace(IDENTITY, class_names=tuple(map(str, range(2**16))), rows=(2**31 - 1, 10, 30)),
        replace(IDENTITY, domain="Klinik für Röntgen"),
    ],
)
def test_an_identity_crosses_unchanged_and_a_name_beside_it_makes_no_other_client(identity, crossed):
    named = decode_identity(crossed(encode_identity(replace(identity, name="Klinik Süd"))))
    assert named == identity
    assert named.name == "Klinik Süd"


def test_an_upload_comes_back_undecoded_so_that_the_figures_beside_a_bad_one_count():
    back, upload = decode_report(encode_report(replace(REPORT, payload=prototypes())))
    assert (back, set(upload)) == (REPORT, {"prototypes.labels", "prototypes.vectors"})
    records = encode_report(REPORT)
    records["arrays"] = ArrayRecord({name: Array("O", (1,), "?", b"") for name in ("x", "ensemble.probabilities")})
    assert replace(decode_report(records)[0], ensemble=None) == REPORT


def test_what_a_client_says_is_made_to_fit(crossed):
    words = "one\ntwo\x1b[31m" + "x" * 5000
    back, _ = decode_report(crossed(encode_report(Report(0, 1, problem=words))))
    assert back.problem == ("one two [31m" + "x" * 5000)[:1000]
    # over a gradient that has vanished
    infinite = replace(REPORT, training=replace(TRAINING, gradient_ratio=math.inf))
    assert decode_report(crossed(encode_report(infinite)))[0].training.gradient_ratio == 1e100
    odd = decode_identity(crossed(encode_identity(replace(IDENTITY, model="a\tb", class_names=("c\n", "d", "e")))))
    assert (odd.model, odd.class_names) == ("a b", ("c ", "d", "e"))


def test_bytes_are_those_that_flower_counts():
    evaluation = replace(EVALUATION, auc=0.75, confusion=(1, 2, 3))
    sent = prototypes() | {"head": Weights({"w": torch.ones(2, 3), "b": torch.zeros(2)})}
    records = encode_report(Report(3, 7, sent, TRAINING, evaluation, "problem", 1.5, Array(np.ones(9))))
    assert count_bytes(records) == sum(record.count_bytes() for record in records.values())
    # Flower's own count ends in an error at an empty text
    assert count_bytes(RecordDict({"config": ConfigRecord({"a": "", "bc": [], "d": True})})) == 5


# --- what is refused ------------------------------------------------------------------------------------------

NOT_FINITE = (math.nan, math.inf, -math.inf, 1e300)
NAMES = tuple(str(number) for number in range(65))  # one more than is allowed
INSTRUCTION = encode_instruction(Instruction("run", 3, prototypes(), constants={"mu": 1.0}))
# decoder and a message that it takes -> record -> (field, words of the reason, values that are refused)
FIELDS = {
    "instruction": {
        "config": [
            ("round", "round", [True, 1.0, "1", 0, -(2**63)]),
            ("trained", "`trained`", [False, -1, 3]),
            ("made", "`made`", [-1, 3]),
            ("last", "`last`", [1]),
            ("run", "`run`", [b"run", ["run"], "", "..", "../x", "/a", "x" * 300]),
            ("more", "more", [1]),
        ],
        "metrics": [
            ("constants.mu", "finite", [*NOT_FINITE[:3], 1e101, 1, [1.0]]),
            ("training.mu", "'training.mu'", [1.0]),
            ("constants.", "`constants`", [1e-300]),
            ("constants.two\nlines", "`constants`", [1.0]),
            (f"constants.{LONG}", "`constants`", [1.0]),
        ],
    },
    "report": {
        "config": [
            ("partition", "`partition`", [3.0, True, [3]]),
            ("round", "`round`", ["7"]),
            ("problem", "`problem`", [b"x", "two\nlines", "\x1b[2J", LONG]),
            ("seconds", "`seconds`", [1, math.nan, math.inf, -1.0]),
            ("more", "more", [1]),
        ],
        "metrics": [
            ("training.rows", "`rows` of `training`", [-1, 20.0, [20], 2**1000]),
            ("training.rows", "no row", [0]),
            ("training.steps", "`steps` of `training`", [-8, 8.0]),
            ("training.seconds", "`seconds` of `training`", [*NOT_FINITE, [0.5], -1.0]),
            ("training.prototype_norm", "`prototype_norm`", [-0.5]),
            ("loss.loss", "`loss` of `loss`", [*NOT_FINITE, [1.5]]),
            *((name, "`loss`", [0.5]) for name in ("loss.two\nlines", f"loss.{LONG}")),
            ("correct.classifier", "`classifier` of `correct`", [[6, -1], [3, 3, 1], [3.0, 1.0], [3], 3]),
            ("correct.classifier", "claims", [[6, 1], [3, 3]]),
            ("evaluation.rows", "`rows` of `evaluation`", [[-5, 2], [5.0, 2.0], 5, [5, 2, 9]]),
            ("evaluation.seconds", "`seconds`", [math.nan, -1.0, [1.0]]),
            ("evaluation.auc", "`auc`", [math.nan, 1.1, -0.1, 1]),
            ("evaluation.confusion", "confusion", [[-1], [1.0], 3]),
            ("correct.two\nlines", "`correct`", [[0, 0]]),
            *((name, "more", [1]) for name in ("training.more", "evaluation.more", "more", "more.x")),
        ],
    },
    "identity": {
        "config": [
            ("partition", "`partition`", [2.0, True]),
            *((name, f"`{name}`", [-1, "64"]) for name in ("partitions", "parameters", "feature_dim")),
            ("rows", "`rows`", [[90, 10], [90, 10, -1], [90.0, 10.0, 30.0], [True, True, False], 90, [90] * 5]),
            ("rows", "none has more than 2147483647", [[90, 10, 2**31], [2**31, 10, 30]]),
            ("rows", "each class needs a training row", [[1, 10, 30], [0, 10, 30]]),
            ("classes", "`classes`", [["0"], [0.0], [True], [-1, 0], [2, 0], [0, 0]]),
            ("classes", "holds 0 classes", [[]]),
            ("classes", "3 class names", [[0, 3]]),
            ("class_names", "`class_names`", [[1, 2, 3], ["cat", "dog\n", "rabbit"], "cat", ["x"] * 65537]),
            *((name, f"`{name}`", [3, ["a"], "a\n", LONG]) for name in ("model", "settings", "encoder", "domain")),
            ("name", "`name`", [3, "\u202ea", "x" * 61]),
            *((name, f"`{name}`", [[1], ["two\nlines"], [LONG]]) for name in ("discloses", "layouts")),
            ("layouts", "4097 tensors", [[f"head/w{number:04d}:1" for number in range(4097)]]),
            (
                "layouts",
                "layout",
                [["head/w"], ["/w:3"], ["head/w:-3"], ["head/b:3", "head/a:3"], ["head/w:999999999x9"]],
            ),
            ("more", "more", [1]),
        ]
    },
}
GOOD = {
    "instruction": (instructed, INSTRUCTION),
    "report": (decode_report, encode_report(REPORT)),
    "identity": (decode_identity, encode_identity(IDENTITY)),
}


def bad_fields():
    for kind, records in FIELDS.items():
        for record, rows in records.items():
            for field, words, values in rows:
                for value in values:
                    yield pytest.param(kind, record, field, value, words, id=f"{kind} {field[:20]!r}")


def test_a_long_list_is_not_quoted_whole(refused):
    text = refused(decode_report, changed(encode_report(REPORT), "metrics", **{"evaluation.confusion": [-1] * 10**5}))
    assert "a list of 100000" in text
    assert len(text) < 300


def test_an_ensemble_holds_its_probabilities_alone(refused):
    records = encode_report(REPORT)
    records["arrays"] = ArrayRecord({"ensemble.more": Array(np.ones(2, np.float16))})
    assert "`ensemble` holds arrays besides" in refused(decode_report, records)


@pytest.mark.parametrize(("kind", "record", "field", "value", "words"), list(bad_fields()))
def test_a_field_that_cannot_be_believed_is_refused_by_name(kind, record, field, value, words, refused):
    decode, good = GOOD[kind]
    assert words in refused(decode, changed(good, record, **{field: value}))


@pytest.mark.parametrize("kind", GOOD)
def test_records_and_fields_too_many_or_too_few_or_of_another_kind(kind, refused):
    decode, good = GOOD[kind]
    decode(good)
    assert "`config` is missing" in refused(decode, RecordDict())
    assert "MetricRecord" in refused(decode, RecordDict({"config": MetricRecord({"round": 1})}))
    for field in good["config"]:
        assert field in refused(decode, changed(good, "config", field))
    for name in ("more", "weights"):
        assert name in refused(decode, RecordDict({**good, name: ArrayRecord({})}))
    # a reason quotes a stranger on one short line
    for name in ("a\nb\x1b[31m", "\ud800", "x" * 10_000):
        refused(decode, RecordDict({name: ConfigRecord({})}))
    if kind == "report":
        for many in ("correct", "loss"):
            value = [0, 0] if many == "correct" else 0.0
            refused(decode, changed(good, "metrics", **{f"{many}.{name}": value for name in NAMES}))
        for name in ("training.rows", "training.steps", "evaluation.rows", "evaluation.seconds"):
            assert name.rpartition(".")[2] in refused(decode, changed(good, "metrics", name))


def test_an_evaluation_is_of_what_the_round_itself_left_and_made(refused):
    """Untrained models are those of round 0."""
    for number in (0, 3):
        records = encode_instruction(Instruction("run", number, last_trained_round=number, made=number))
        assert instructed(records, trains=False).last_trained_round == number
        assert "round" in refused(instructed, records)
    for late in ({"last_trained_round": 4}, {"made": 4}):
        records = encode_instruction(Instruction("run", 3, **late))
        assert "round 3 cannot" in refused(partial(instructed, trains=False), records)


def test_a_download_is_of_the_parts_that_were_agreed(refused):
    sent = encode_instruction(Instruction("run", 1, prototypes()))
    assert "the record `arrays`, which nobody agreed on" in refused(instructed, sent, NOTHING)
    assert "where ['mixtures.labels'" in refused(instructed, sent, Exchange((), (Part("mixtures", components=None),)))
    # where nothing comes, nothing need be agreed
    assert instructed(encode_instruction(Instruction("run", 1)), NOTHING).payload is None
    # of a message of either part one comes, and no other number
    parts, head = tuple(Part("weights", name) for name in "vw"), Weights({"a": torch.ones(2)})
    either, limits = Exchange((), parts, either=True), Limits(100.0, {"v": head.layout, "w": head.layout})

    def come(*names):
        instruction = Instruction("a-run", 2, dict.fromkeys(names, head) if names else None)
        return instructed(encode_instruction(instruction, parts), either, limits).payload

    assert come() is None
    assert [list(come(name)) for name in "vw"] == [["v"], ["w"]]
    assert "'w.values'] where ['v.small', 'v.values'] belong" in refused(come, "v", "w")


def test_prototypes_that_clients_multiply_by_a_constant_may_be_as_many_times_longer(refused):
    (longest,) = (float(part.vectors.norm(dim=1).max()) for part in prototypes().values())

    def decoded(factor, mu=0.5):
        sent = encode_instruction(Instruction("run", 2, prototypes(), constants={"mu": mu}))
        exchange = Exchange(down=(Part("prototypes", factor=factor),))
        return decode_instruction(sent, exchange, K, D, Limits(0.6 * longest))

    assert decoded("mu").payload is not None
    assert "above `max-prototype-norm`" in refused(decoded, "")
    # a constant that would make them longer, or no number to multiply by, moves no bound
    for mu in (0.7, 2.0, 0.0, -0.5):
        assert "above `max-prototype-norm`" in refused(decoded, "mu", mu)


@pytest.mark.parametrize("name", ["ensemble", "a.b", "a/b", "two words"])
def test_a_part_has_a_name_that_messages_can_hold_beside_others(name):
    with pytest.raises(ValueError, match="a part is called"):
        Part("weights", name)


# --- anything at all ------------------------------------------------------------------------------------------

SCALARS = [0, 1, 7, -1, 2**62, -(2**62), 0.0, 0.5, -1.5, 1e99, 1e101, 1e308, math.nan, math.inf]
TEXTS = ["", "loss", "a\nb", "\x1b[0m", "x" * 2000, "\u2028", b"", b"\xff", True, False]


def mutated(records, draw):
    """One to three fields replaced by anything, or by something of their own type."""
    for _ in range(draw.randint(1, 3)):
        name = draw.choice(list(records))
        if isinstance(records[name], ArrayRecord):
            continue
        field = draw.choice([*records[name], "x"])
        old = records[name].get(field, 0)
        first = old[0] if isinstance(old, list) and old else old
        alike = [other for other in SCALARS + TEXTS if type(other) is type(first)] or SCALARS
        if isinstance(records[name], MetricRecord):
            alike = [other for other in alike if type(other) in (int, float)] or SCALARS
        value = draw.choice(alike)
        records[name][field] = draw.choice(
            [value, [value], draw.choices(alike, k=len(old) if isinstance(old, list) else 2)]
        )
    return records


def test_whatever_decodes_of_a_mutated_message_can_be_averaged_and_kept():
    draw, decoded = random.Random(0), {"report": 0, "identity": 0}
    for _ in range(2000):
        try:
            report, _ = decode_report(mutated(encode_report(replace(REPORT, payload=prototypes())), draw))
        except MessageError:
            pass
        else:
            decoded["report"] += 1
            trainings, evaluations = {1: TRAINING, 2: report.training}, {1: EVALUATION, 2: report.evaluation}
            figures = [over_trainings(trainings), over_clients(evaluations, 20), of_client(report.evaluation)]
            json.dumps([*figures, report.problem, report.seconds, report.evaluation.seconds], allow_nan=False)
        try:
            identity = decode_identity(mutated(encode_identity(IDENTITY), draw))
        except MessageError:
            continue
        decoded["identity"] += 1
        json.dumps(asdict(identity), allow_nan=False)
        assert all(text.isprintable() for text in (identity.model, identity.problem, *identity.class_names))
    assert all(20 < number < 1900 for number in decoded.values()), decoded  # both ways were tried
