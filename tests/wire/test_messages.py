"""Messages: round trips over Flower's own serialisation, sizes by another count, and what is refused."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire import codec as arrays
from protosphere.wire import messages, sizes
from protosphere.wire.codec import Codec, Limits, decode_payload
from protosphere.wire.messages import decode_identity, decode_instruction
from protosphere.wire.payloads import Evaluation, Instruction, Report, TrainingFigures
from protosphere.wire.sizes import record_bytes, wire_bytes
from protosphere.wire.specs import Spec
from tests.payloads import lone, payload
from tests.strategies.sets import same

K, D = 6, 4
CODEC = Codec(K, D)
LIMITS = Limits(CODEC, max_norm=100.0)
COUNTED = Limits(CODEC, max_norm=100.0, specs=(Spec("prototypes", counts=True),))
encode_payload = partial(arrays.encode_payload, codec=CODEC)
encode_instruction = partial(messages.encode_instruction, codec=CODEC)
encode_report = partial(messages.encode_report, codec=CODEC)
decode_report = partial(messages.decode_report, codec=CODEC)


def prototypes(labels=(0, 2, 5), dim=D, counts=None, seed=0):
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed))
    counted = None if counts is None else torch.tensor(counts, dtype=torch.int64)
    return payload(PrototypeSet(torch.tensor(labels, dtype=torch.int64), vectors, counted))


def record(labels=None, vectors=None, **more):
    """An upload made by hand from numpy arrays."""
    labels = np.array([0, 2, 5], np.int16) if labels is None else labels
    vectors = np.ones((3, D), np.float32) if vectors is None else vectors
    return ArrayRecord({name: Array(values) for name, values in {"labels": labels, "vectors": vectors, **more}.items()})


# --- payloads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        (prototypes(), LIMITS),
        (prototypes(counts=(1, 2**31 - 1, 3)), COUNTED),
        (prototypes(range(K)), LIMITS),
        (prototypes(()), LIMITS),
        (prototypes((), counts=()), COUNTED),
        (prototypes((4,)), LIMITS),
    ],
)
def test_a_payload_crosses_unchanged(sent, limits, crossed):
    assert same(decode_payload(crossed(encode_payload(sent)), limits), sent)


@pytest.mark.parametrize(("label", "dtype"), [(32767, np.int16), (32768, np.int32)])
def test_labels_travel_as_narrow_as_they_can(label, dtype, crossed):
    codec = Codec(label + 1, D)
    encoded = crossed(encode_payload(prototypes((0, label)), codec=codec))
    assert encoded["labels"].numpy().dtype == dtype
    assert lone(decode_payload(encoded, Limits(codec, 100.0))).labels.tolist() == [0, label]


def test_encoding_takes_any_layout_and_what_was_decoded_can_be_written_to():
    sent = lone(prototypes(counts=(1, 2, 3)))
    transposed = sent.with_vectors(sent.vectors.t().contiguous().t().requires_grad_())
    decoded = lone(decode_payload(encode_payload(payload(transposed)), COUNTED))
    assert same(decoded, sent)
    decoded.vectors.add_(1)
    decoded.counts.add_(1)


# --- sizes --------------------------------------------------------------------------------------------------


def independent_wire_bytes(records):
    """Flower's objects, each serialised by itself, counted with a stack instead of a recursion."""
    total, waiting = 0, [records]
    while waiting:
        item = waiting.pop()
        total += len(item.deflate())
        waiting.extend((item.children or {}).values())
    return total


WIDE = Codec(100, 512)


def whole_report(dim=D, labels=(0, 2, 5)):
    training = TrainingFigures(20, 8, {"cross-entropy": 1.5, "loss": 1.75}, 0.5, 3.0, 2.0, 1.25)
    evaluation = Evaluation((5, 2), {"classifier": (3, 1), "majority-class": (0, 2)}, 0.125)
    return Report(3, 7, prototypes(labels, dim), training, evaluation, seconds=1.5)


@pytest.mark.parametrize(
    "records",
    [
        encode_report(whole_report(512, range(100)), codec=WIDE),
        # three chunks of five MiB, two of them alike: those cross once
        RecordDict({"payload": ArrayRecord({"x": Array(np.zeros(12 << 18, np.float32))})}),
        # arrays and records that are alike, one of them without a value, and a name that JSON escapes
        RecordDict(
            {
                name: ArrayRecord({"ä": Array(np.ones(3)), "b": Array(np.ones(3)), "c": Array(np.zeros(0))})
                for name in "ab"
            }
            | {name: ConfigRecord({"a": 1}) for name in "cd"}
            | {"evaluation": ConfigRecord({})}
        ),
        RecordDict({}),
    ],
)
def test_wire_bytes_equals_another_count(records):
    assert wire_bytes(records) == independent_wire_bytes(records)
    named = {name: item for name, item in records.items() if name != "evaluation"}
    assert wire_bytes(records, without=("evaluation",)) == independent_wire_bytes(RecordDict(named))


def test_where_flower_frames_otherwise_its_own_objects_are_counted(monkeypatch):
    """As a new Flower might: what we know of its frames is then wrong."""
    alike = {name: Array(np.ones(3)) for name in "ab"}
    records = RecordDict({"payload": ArrayRecord(alike | {"c": Array(np.zeros(4))}), "figures": ConfigRecord({"a": 1})})
    right = {name: record_bytes(record) for name, record in records.items()}
    assert right["payload"] == independent_wire_bytes(records["payload"])
    sizes._is_framed_as_known.cache_clear()
    monkeypatch.setattr(sizes, "frame_bytes", lambda kind, children, body: 0)
    assert not sizes._is_framed_as_known()
    assert {name: record_bytes(record) for name, record in records.items()} == right
    monkeypatch.undo()
    sizes._is_framed_as_known.cache_clear()
    assert sizes._is_framed_as_known()


# --- instructions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [None, prototypes(), prototypes(())])
@pytest.mark.parametrize(
    ("last", "trained", "constants"),
    [
        (True, 0, {}),
        (False, 4, {"mu": 0.1 + 0.2}),
        (True, 11, {"mu": 1.5e-4, "zero": 0.0, "below": -5e-324, "most": 1e100}),
    ],
)
def test_an_instruction_crosses_unchanged_and_constants_to_the_bit_and_in_order(
    came, last, trained, constants, crossed
):
    sent = Instruction("20260101-120000-fedproto-digits", 12, came, trained, constants, last=last)
    back = decode_instruction(crossed(encode_instruction(sent)), LIMITS)
    assert replace(back, payload=None) == replace(sent, payload=None)
    assert list(back.constants) == list(constants)
    assert same(back.payload, came)


def instruction_with(**fields):
    header = dict(encode_instruction(Instruction("run", 1))["instruction"]) | fields
    return RecordDict({"instruction": ConfigRecord({name: v for name, v in header.items() if v is not None})})


# field, words of the reason, values that are refused (None leaves the field out)
BAD_FIELDS = [
    ("round", "round", [None, True, 1.0, "1", 0, -1, -(2**63)]),
    ("trained", "trained", [False, None]),
    ("trained", "training in round", [-1, 1, 2]),
    ("last", "`last`", [1]),
    ("run", "`run`", [b"run", ["run"]]),
    ("token", "`token`", [b"x", "two\nlines"]),
    ("codec", "codec", [3, None, ""]),
    ("constants", "constants", [None]),
    ("payload", "'weights'", ["weights"]),
    ("payload", "'prototypes'", ["prototypes"]),
    ("more", "more", [1]),
]
LONG = "x" * 1001
# names of constants, their values, words of the reason
BAD_CONSTANTS = [
    *((["mu"], [value], "finite") for value in (math.nan, math.inf, -math.inf, 1e101)),
    *((["mu"], values, "a finite number each") for values in ([], [1.0, 2.0], [1], [True], ["1.0"])),
    ([], [1.0], "a finite number each"),
    (["mu"], 1.0, "`values`"),
    *((names, [1.0], "`constants`") for names in ("mu", [1], [b"mu"], ["two\nlines"], [LONG])),
    (["mu", "mu"], [1.0, 2.0], "at most 64 different"),
    ([str(i) for i in range(65)], [1.0] * 65, "at most 64 different"),
]
BAD_INSTRUCTIONS = [
    (RecordDict(), "`instruction` is missing"),
    (RecordDict({"payload": record()}), "`instruction` is missing"),
    (RecordDict({"instruction": MetricRecord({"round": 1})}), "MetricRecord"),
    (RecordDict({**instruction_with(), "payload": record()}), "does not go with the arrays"),
    (RecordDict({**instruction_with(payload="prototypes"), "payload": ConfigRecord({})}), "ConfigRecord"),
    (RecordDict({**instruction_with(payload="prototypes"), "payload": record(np.zeros(3))}), "labels"),
    (RecordDict({**instruction_with(), "weights": record()}), "'weights'"),
    *[(instruction_with(**{name: value}), said) for name, said, values in BAD_FIELDS for value in values],
    *[(instruction_with(constants=names, values=values), said) for names, values, said in BAD_CONSTANTS],
]


@pytest.mark.parametrize(("records", "named"), BAD_INSTRUCTIONS)
def test_bad_instructions(records, named, refused):
    assert named in refused(decode_instruction, records, LIMITS)


def test_a_run_name_that_leads_elsewhere_is_refused(refused):
    for run in ("", "..", "../x", "/a", "x" * 300):
        assert "run name" in refused(decode_instruction, encode_instruction(Instruction(run, 1)), LIMITS)


def test_an_evaluation_is_of_what_the_round_itself_left_and_made(refused):
    """Untrained models are those of round 0."""
    for number, trained in ((0, 0), (3, 3)):
        records = encode_instruction(Instruction("run", number, trained=trained, made=trained))
        assert decode_instruction(records, LIMITS, trains=False).trained == trained
        assert "round" in refused(decode_instruction, records, LIMITS)
    for late in ({"trained": 4}, {"made": 4}, {"trained": -1}):
        records = encode_instruction(Instruction("run", 3, **late))
        assert "round 3 cannot" in refused(partial(decode_instruction, trains=False), records, LIMITS)


@pytest.mark.parametrize("kind", [None, "mixtures"])
def test_a_payload_of_a_kind_that_was_not_agreed(kind, refused):
    limits = replace(LIMITS, specs=(Spec(kind),) if kind else ())
    sent = encode_instruction(Instruction("run", 1, prototypes()))
    assert "payload kind 'prototypes' was not agreed on" in refused(decode_instruction, sent, limits)
    # where nothing comes, nothing need be agreed
    assert decode_instruction(encode_instruction(Instruction("run", 1)), limits).payload is None


# --- the codec ----------------------------------------------------------------------------------------------

MASKED = Codec(K, 12, 3)


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("theirs", [Codec(K + 1, 12, 3), Codec(K, 12, 3, seed=1)], ids=["classes", "seed"])
def test_a_message_of_another_codec_is_refused_and_not_decoded(theirs, holds, crossed, refused, monkeypatch):
    """Also one without a payload: in round 1, when nothing comes down yet. What differs: test_codec.py."""
    sent = prototypes(dim=theirs.dim)
    down = crossed(encode_instruction(Instruction("run", 2, sent if holds else None), codec=theirs))
    up = crossed(encode_report(Report(0, 1, sent if holds else None), codec=theirs))
    if holds and theirs.num_classes == K:
        # its shapes would fit
        misread = lone(arrays.decode_payload(up["payload"], Limits(MASKED, 100.0))).vectors
        assert misread.shape == lone(sent).vectors.shape
        assert not misread.equal(lone(arrays.decode_payload(up["payload"], Limits(theirs, 100.0))).vectors)

    def undue(*arguments):
        raise AssertionError("a payload of another codec was decoded")

    monkeypatch.setattr(messages, "decode_payload", undue)
    assert "another codec" in refused(decode_instruction, down, Limits(MASKED, 100.0))
    assert "another codec" in refused(partial(decode_report, codec=MASKED), up)


# --- every message ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "decode", [decode_report, decode_identity, lambda records: decode_instruction(records, LIMITS)]
)
def test_a_reason_quotes_a_stranger_on_one_short_line(decode, refused):
    for name in ("a\nb\x1b[31m", "\ud800", "x" * 10_000):
        refused(decode, RecordDict({name: ConfigRecord({})}))
