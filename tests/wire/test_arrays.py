"""Arrays on the wire: what crosses of a prototype and how exactly, what a number format cannot hold, and the shapes of
weights that may be smaller than their layout. Hostile uploads: test_uploads.py."""

import re

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.wire.arrays import Limits, decode, encode, value_bytes
from protosphere.wire.checks import CodecError
from protosphere.wire.parts import MIXTURES, NOTHING, PROTOTYPES, Exchange, Part
from tests.payloads import payload

K, D = 8, 12
BYTES = {"float32": 4, "float16": 2}


def prototypes(labels, counted=False, dim=D):
    """Rows of very different size, one of them zero where there are several."""
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(0))
    vectors *= 10.0 ** torch.linspace(3, -6, len(labels)).unsqueeze(1)
    vectors[1:2] = 0
    counts = torch.arange(1, len(labels) + 1) if counted else None
    return PrototypeSet(torch.tensor(list(labels), dtype=torch.int64), vectors, counts)


def arrived(record, part, layouts=None):
    """As the other side takes it."""
    return decode(record, (part,), K, D, Limits(1e6, layouts or {}))[part.name]


# --- there and back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("labels", [range(K), (0, 2, 5, 7), (4,), ()], ids=["all", "some", "one", "none"])
@pytest.mark.parametrize(("dtype", "theirs"), [("float32", np.float32), ("float16", np.float16)])
def test_what_crosses_is_what_numpy_makes_of_it_in_that_format(dtype, theirs, labels, counted, crossed):
    part, sent = Part("prototypes", counts=counted, dtype=dtype), prototypes(labels, counted)
    record = crossed(encode(payload(sent), (part,)))
    assert record["prototypes.vectors"].numpy().dtype == theirs
    assert value_bytes(record) == BYTES[dtype] * len(labels) * D
    back = arrived(record, part)
    assert back.labels.tolist() == list(labels)
    assert back.vectors.dtype == torch.float32
    assert np.array_equal(back.vectors.numpy(), sent.vectors.numpy().astype(theirs).astype(np.float32))
    assert back.counts is None if not counted else back.counts.equal(sent.counts)


@pytest.mark.parametrize("dtype", BYTES)
def test_encoding_leaves_the_payload_alone_and_what_was_decoded_encodes_to_the_same_again(dtype):
    part, sent = Part("prototypes", dtype=dtype), prototypes(range(K))
    before = sent.vectors.clone()
    once = encode(payload(sent.with_vectors(sent.vectors.requires_grad_())), (part,))
    assert sent.vectors.equal(before)
    again = encode(payload(arrived(once, part)), (part,))
    assert {name: array.data for name, array in again.items()} == {name: array.data for name, array in once.items()}


@pytest.mark.parametrize(("label", "dtype"), [(32767, np.int16), (32768, np.int32)])
def test_labels_travel_as_narrow_as_they_can(label, dtype, crossed):
    encoded = crossed(encode(payload(prototypes((0, label)))))
    assert encoded["prototypes.labels"].numpy().dtype == dtype
    (back,) = decode(encoded, (PROTOTYPES,), label + 1, D, Limits(1e6)).values()
    assert back.labels.tolist() == [0, label]


def test_encoding_takes_any_layout_and_what_was_decoded_can_be_written_to():
    sent = prototypes((1, 4, 6), counted=True)
    transposed = sent.with_vectors(sent.vectors.t().contiguous().t().requires_grad_())
    back = arrived(encode(payload(transposed)), Part("prototypes", counts=True))
    assert torch.equal(back.vectors, sent.vectors)
    back.vectors.add_(1)
    back.counts.add_(1)


@pytest.mark.parametrize(("width", "values"), [("features", D), ("classes", K), (5, 5)])
def test_a_row_has_the_width_that_its_part_says(width, values):
    part = Part("prototypes", width=width)
    assert part.count_values(K, D) == values
    assert arrived(encode(payload(prototypes((0, 3), dim=values))), part).dim == values


def test_parts_of_a_message_stand_side_by_side():
    parts = (Part("prototypes"), Part("prototypes", "encoder-means"), Part("weights", "head"))
    head = Weights({"w": torch.ones(2, 3), "b": torch.zeros(2)})
    sent = {"prototypes": prototypes((1,)), "encoder-means": prototypes(()), "head": head}
    record = encode(sent, parts)
    assert set(record) == {
        *(f"{name}.{field}" for name in ("prototypes", "encoder-means") for field in ("labels", "vectors")),
        *("head.values", "head.small"),
    }
    back = decode(record, parts, K, D, Limits(1e6, {"head": head.layout}))
    assert list(back) == [part.name for part in parts]
    assert back["head"].tensors["w"].equal(head.tensors["w"])


# --- what a format cannot hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value", "named"),
    [
        ("float16", 65520.0, "65520, beyond 65504"),
        ("float16", -1e6, "wire-dtype float32"),
        ("float16", float("-inf"), "NaN or infinity"),
        ("float32", float("nan"), "NaN or infinity"),
    ],
)
def test_a_value_that_the_format_cannot_hold_names_its_class_or_its_tensor(dtype, value, named):
    sent = prototypes((1, 4, 6))
    vectors = sent.vectors.clone()
    vectors[2, -1] = value
    with pytest.raises(CodecError, match=rf"^a prototype cannot be sent \(class 6\): .*{named}"):
        encode(payload(sent.with_vectors(vectors)), (Part("prototypes", dtype=dtype),))
    with pytest.raises(CodecError, match=rf"^weights cannot be sent: tensor `w` .*{named}"):
        encode({"head": Weights({"w": vectors})}, (Part("weights", "head", dtype=dtype),))


def test_small_tensors_cross_as_float32_whatever_the_format():
    sent = Weights({"b": torch.tensor([1e6, 1e-7])})
    part = Part("weights", "head", dtype="float16")
    assert arrived(encode({"head": sent}, (part,)), part, {"head": sent.layout}).tensors["b"].equal(sent.tensors["b"])


# --- weights of any size up to their layout ---------------------------------------------------------------------

RAGGED = Part("weights", "w", ragged=True, signed=True)
LARGEST = {"w": (("a", (4, 3)), ("b", (2,)))}
SMALL = Weights({"a": torch.ones(4, 1), "b": torch.zeros(2)})


def test_ragged_weights_come_with_their_shapes():
    record = encode({"w": SMALL}, (RAGGED,))
    assert record["w.shapes"].numpy().tolist() == [4, 1, 2]
    assert value_bytes(record) == 4 * 6
    assert arrived(record, RAGGED, LARGEST).layout == SMALL.layout
    none = Weights({"a": torch.ones(0, 3), "b": torch.zeros(2)})
    assert arrived(encode({"w": none}, (RAGGED,)), RAGGED, LARGEST).tensors["a"].shape == (0, 3)


def shapes(*values, kind=np.int32):
    return {"w.shapes": np.array(values, kind)}


HOSTILE = {
    "no shapes": ({"w.shapes": None}, r"where \['w.shapes', 'w.small', 'w.values'\] belong"),
    "a size beyond the layout": (shapes(4, 4, 2), r"tensor `a` has shape \(4, 4\), at most \(4, 3\) was agreed"),
    "a negative size": (shapes(-4, -1, 2), r"tensor `a` has shape \(-4, -1\)"),
    "too few sizes": (shapes(4, 1), r"`shapes` is int32 of shape \(2,\), 3 values of int32 were agreed"),
    "too many sizes": (shapes(4, 1, 2, 0), r"`shapes` is int32 of shape \(4,\), 3 values"),
    "sizes in two dimensions": (shapes([4, 1, 2]), r"shape \(1, 3\), 3 values"),
    "sizes of another type": (shapes(4, 1, 2, kind=np.int64), "`shapes` is int64"),
    "other sizes than the values": (shapes(4, 2, 2), r"`values` is float32 of shape \(4,\), 8 values of float32"),
    "NaN": ({"w.values": np.full(4, np.nan, np.float32)}, "not finite"),
    "too long": ({"w.values": np.full(4, 1e9, np.float32)}, "has norm .*, above"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_malformed_shapes_are_refused_by_what_is_wrong(case, refused):
    changes, words = HOSTILE[case]
    arrays = {name: array.numpy() for name, array in encode({"w": SMALL}, (RAGGED,)).items()} | changes
    hostile = ArrayRecord({name: Array(values) for name, values in arrays.items() if values is not None})
    reason = refused(arrived, hostile, RAGGED, LARGEST)
    assert re.search(words, reason)


def test_only_a_signed_part_may_lower_a_variance(refused):
    sent = Weights({"running_var": torch.tensor([-1.0])})
    layouts = {"w": sent.layout}
    record = encode({"w": sent})
    assert arrived(record, Part("weights", "w", signed=True), layouts).tensors["running_var"] == -1
    assert "`running_var` holds a negative variance" in refused(arrived, record, Part("weights", "w"), layouts)


# --- what a method says of its messages -------------------------------------------------------------------------


def test_parts_without_a_format_of_their_own_have_the_run_s():
    exchange = Exchange((PROTOTYPES, Part("weights", "head", dtype="float32")), (MIXTURES,))
    found = exchange.in_format("float16")
    assert [part.dtype for part in (*found.up, *found.down)] == ["float16", "float32", "float16"]
    assert found.in_format("float32") == found


def test_what_is_disclosed_follows_from_the_parts():
    up = (
        Part("prototypes", width=3, counts=True),
        Part("prototypes", "outputs", width="classes"),
        Part("mixtures", width=1),
        Part("weights", "head"),
        Part("weights", "moment", disclosure="its moment"),
    )
    assert Exchange(up, discloses=("and more",)).list_disclosures(D) == [
        "prototypes of its classes (3 of their 12 values)",
        "the mean outputs of its model for its classes",
        "mixtures of its classes",
        "the trained weights of its head",
        "its moment",
        "its class counts",
        "and more",
    ]
    assert NOTHING.list_disclosures(D) == []
