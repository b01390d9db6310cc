"""Messages: instructions over Flower's own serialisation, sizes by Flower's own count, and what is refused."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.wire.arrays import Limits
from protosphere.wire.messages import (
    decode_identity,
    decode_instruction,
    decode_report,
    encode_instruction,
    encode_report,
)
from protosphere.wire.parts import NOTHING, Exchange, Part
from protosphere.wire.payloads import Evaluation, Instruction, Report, TrainingFigures
from protosphere.wire.sizes import bytes_by_part
from tests.payloads import payload
from tests.strategies.sets import same

K, D = 6, 4


def prototypes(labels=(0, 2, 5), dim=D):
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(0))
    return payload(PrototypeSet(torch.tensor(labels, dtype=torch.int64), vectors))


def arrived(records, exchange=Exchange(), limits=Limits(100.0), trains=True):  # noqa: B008
    """As the client takes it."""
    return decode_instruction(records, exchange, K, D, limits, trains=trains)


def arrays(labels=None):
    """A download made by hand from numpy arrays."""
    labels = np.array([0, 2, 5], np.int16) if labels is None else labels
    vectors = np.ones((3, D), np.float32)
    return ArrayRecord({"prototypes.labels": Array(labels), "prototypes.vectors": Array(vectors)})


# --- sizes --------------------------------------------------------------------------------------------------


def test_bytes_by_part_add_up_to_what_flower_counts():
    training = TrainingFigures(20, 8, {"cross-entropy": 1.5, "loss": 1.75}, 0.5, 3.0, 2.0, 1.25)
    evaluation = Evaluation((5, 2), {"classifier": (3, 1), "majority-class": (0, 2)}, 0.125, 0.75, (1, 2, 3))
    ensemble = ArrayRecord({"p": Array(np.ones(9))})
    # Flower's own count ends in an error at an empty text
    report = Report(3, 7, prototypes(), training, evaluation, "problem", 1.5, ensemble, "remark")
    records = encode_report(report)
    sizes = bytes_by_part(records)
    assert sum(sizes.values()) == sum(record.count_bytes() for record in records.values())
    parts = ("config", "prototypes", "training", "loss", "evaluation", "correct", "ensemble")
    assert sizes.keys() == set(parts)
    assert sizes["ensemble"] == len("ensemble.p") + 128 + 9 * 8
    assert sum(bytes_by_part(encode_report(Report(0, 1))).values()) > 0
    assert bytes_by_part(RecordDict()) == {}


def test_of_an_upload_of_several_parts_each_has_its_own():
    head = Weights({"w": torch.ones(2, 3), "b": torch.zeros(2)})
    sizes = bytes_by_part(encode_report(Report(0, 1, {**prototypes(), "head": head})))
    npy = 128
    assert sizes["head"] == len("head.values") + len("head.small") + 2 * npy + 4 * 8
    assert sizes["prototypes"] == len("prototypes.labels") + len("prototypes.vectors") + 2 * npy + 2 * 3 + 4 * 3 * D


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
    back = arrived(crossed(encode_instruction(sent)))
    assert replace(back, payload=None) == replace(sent, payload=None)
    assert list(back.constants) == list(constants)
    assert same(back.payload, came)


def instruction_with(**fields):
    config = dict(encode_instruction(Instruction("run", 1))["config"]) | fields
    return RecordDict({"config": ConfigRecord({name: v for name, v in config.items() if v is not None})})


def with_constants(**constants):
    return RecordDict({**instruction_with(), "metrics": MetricRecord(constants)})


# field, words of the reason, values that are refused (None leaves the field out)
BAD_FIELDS = [
    ("round", "round", [None, True, 1.0, "1", 0, -1, -(2**63)]),
    ("trained", "trained", [False, None]),
    ("trained", "training in round", [-1, 1, 2]),
    ("made", "cannot bring what round", [-1, 1]),
    ("last", "`last`", [1]),
    ("run", "`run`", [b"run", ["run"]]),
    ("more", "more", [1]),
]
LONG = "x" * 1001
BAD_INSTRUCTIONS = [
    (RecordDict(), "`config` is missing"),
    (RecordDict({"arrays": arrays()}), "`config` is missing"),
    (RecordDict({"config": MetricRecord({"round": 1})}), "MetricRecord"),
    (RecordDict({**instruction_with(), "arrays": ConfigRecord({})}), "ConfigRecord"),
    (RecordDict({**instruction_with(), "arrays": arrays(np.zeros(3))}), "labels"),
    (RecordDict({**instruction_with(), "arrays": ArrayRecord({})}), "the arrays [] where"),
    (RecordDict({**instruction_with(), "weights": arrays()}), "'weights'"),
    *[(instruction_with(**{name: value}), said) for name, said, values in BAD_FIELDS for value in values],
    *((with_constants(**{"constants.mu": value}), "finite") for value in (math.nan, math.inf, -math.inf, 1e101)),
    *((with_constants(**{"constants.mu": value}), "no constant") for value in (1, [1.0])),
    (with_constants(**{"training.mu": 1.0}), "`training.mu` of record `metrics` is 1.0, no constant"),
    (with_constants(mu=1.0), "`mu` of record `metrics` is 1.0, no constant"),
    *((with_constants(**{f"constants.{name}": 1.0}), "`constants`") for name in ("two\nlines", LONG)),
    (with_constants(**{f"constants.{i}": 1.0 for i in range(65)}), "at most 64 different"),
]


@pytest.mark.parametrize(("records", "named"), BAD_INSTRUCTIONS)
def test_bad_instructions(records, named, refused):
    assert named in refused(arrived, records)


def test_a_run_name_that_leads_elsewhere_is_refused(refused):
    for run in ("", "..", "../x", "/a", "x" * 300):
        assert "run name" in refused(arrived, encode_instruction(Instruction(run, 1)))


def test_an_evaluation_is_of_what_the_round_itself_left_and_made(refused):
    """Untrained models are those of round 0."""
    for number, trained in ((0, 0), (3, 3)):
        records = encode_instruction(Instruction("run", number, last_trained_round=trained, made=trained))
        assert arrived(records, trains=False).last_trained_round == trained
        assert "round" in refused(arrived, records)
    for late in ({"last_trained_round": 4}, {"made": 4}, {"last_trained_round": -1}):
        records = encode_instruction(Instruction("run", 3, **late))
        assert "round 3 cannot" in refused(partial(arrived, trains=False), records)


def test_arrays_where_nothing_was_agreed_and_of_another_kind(refused):
    sent = encode_instruction(Instruction("run", 1, prototypes()))
    assert "the record `arrays`, which nobody agreed on" in refused(arrived, sent, NOTHING)
    other = Exchange((), (Part("mixtures", components=None),))
    assert "['prototypes.labels', 'prototypes.vectors'] where ['mixtures.labels'" in refused(arrived, sent, other)
    # where nothing comes, nothing need be agreed
    assert arrived(encode_instruction(Instruction("run", 1)), NOTHING).payload is None


@pytest.mark.parametrize("name", ["ensemble", "a.b", "a/b", "two words"])
def test_a_part_has_a_name_that_messages_can_hold_beside_others(name):
    with pytest.raises(ValueError, match="a part is called"):
        Part("weights", name)


def test_the_bound_on_norms_is_measured_in_what_the_run_s_constants_say(refused):
    sent = encode_instruction(Instruction("run", 2, prototypes(), constants={"mu": 0.5}))
    (longest,) = (float(part.vectors.norm(dim=1).max()) for part in prototypes().values())
    limits = Limits(0.6 * longest)

    def decoded(unit):
        return decode_instruction(sent, Exchange(), K, D, limits, unit)

    assert decoded(lambda constants: 1 / constants["mu"]).payload is not None
    assert "above `max-prototype-norm`" in refused(decoded, lambda constants: 1.0)


def test_of_a_message_of_either_part_one_comes_and_no_other_number(refused):
    parts = tuple(Part("weights", name) for name in "vw")
    either = Exchange((), parts, either=True)
    sent = Weights({"a": torch.ones(2)})
    limits = Limits(100.0, {"v": sent.layout, "w": sent.layout})

    def come(*names):
        instruction = Instruction("a-run", 2, dict.fromkeys(names, sent) if names else None)
        return arrived(encode_instruction(instruction, parts), either, limits).payload

    assert come() is None
    assert [list(come(name)) for name in "vw"] == [["v"], ["w"]]
    assert "'w.values'] where ['v.small', 'v.values'] belong" in refused(come, "v", "w")
    assert "['x.small', 'x.values'] where" in refused(come, "x")


# --- every message ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [decode_report, decode_identity, arrived])
def test_a_reason_quotes_a_stranger_on_one_short_line(decode, refused):
    for name in ("a\nb\x1b[31m", "\ud800", "x" * 10_000):
        refused(decode, RecordDict({name: ConfigRecord({})}))
