"""What crosses of prototypes, mixtures and weights, how exactly, and in how many bytes. Arrays
made to harm: test_uploads.py."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protosphere.prototypes.fusion import fuse
from protosphere.prototypes.mixture import fit_class_mixtures
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.wire.arrays import Limits, decode, encode, value_bytes
from protosphere.wire.checks import CodecError
from protosphere.wire.parts import MIXTURES, PROTOTYPES, Exchange, Part
from protosphere.wire.payloads import from_tensors, to_tensors
from tests.payloads import lone, payload
from tests.strategies.sets import same

K, D = 8, 12
BYTES = {"float32": 4, "float16": 2}
COMPONENTS = Part("mixtures", components=3)
TINY = float(np.finfo(np.float32).tiny)


def prototypes(labels, counted=False, dim=D):
    """Rows of very different size, one of them zero where there are several."""
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(0))
    vectors *= 10.0 ** torch.linspace(3, -6, len(labels)).unsqueeze(1)
    vectors[1:2] = 0
    counts = torch.arange(1, len(labels) + 1) if counted else None
    return PrototypeSet(torch.tensor(list(labels), dtype=torch.int64), vectors, counts)


def mixtures(labels=(0, 0, 2, 5, 5, 5), counts=None):
    """Any mixtures; the components of a class weigh alike."""
    random = torch.Generator().manual_seed(0)
    weights = torch.tensor([1 / labels.count(label) for label in labels])
    means, variances = torch.randn(len(labels), D, generator=random), torch.rand(len(labels), D, generator=random) + 0.1
    counts = None if counts is None else torch.tensor(counts)
    return MixtureSet(torch.tensor(labels, dtype=torch.int64), means, variances, weights, counts)


def arrived(record, part, layouts=None, max_norm=1e6):
    """As the other side takes it."""
    return decode(record, (part,), K, D, Limits(max_norm, layouts or {}))[part.name]


# --- prototypes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("labels", [range(K), (0, 2, 5, 7), ()], ids=["all", "some", "none"])
@pytest.mark.parametrize(("dtype", "theirs"), [("float32", np.float32), ("float16", np.float16)])
def test_prototypes_cross_as_numpy_rounds_them_and_encode_to_the_same_again(dtype, theirs, labels, counted, crossed):
    part, sent = Part("prototypes", counts=counted, dtype=dtype), prototypes(labels, counted)
    # in any layout in memory
    transposed = sent.with_vectors(sent.vectors.t().contiguous().t().requires_grad_())
    record = crossed(encode(payload(transposed), (part,)))
    assert value_bytes(record) == BYTES[dtype] * len(labels) * D
    back = arrived(record, part)
    assert back.labels.tolist() == list(labels)
    assert np.array_equal(back.vectors.numpy(), sent.vectors.numpy().astype(theirs).astype(np.float32))
    assert back.counts is None if not counted else back.counts.equal(sent.counts)
    again = encode(payload(back), (part,))
    assert {name: array.data for name, array in again.items()} == {name: array.data for name, array in record.items()}
    back.vectors.add_(1)


@pytest.mark.parametrize(("label", "dtype"), [(32767, np.int16), (32768, np.int32)])
def test_labels_travel_as_narrow_as_they_can(label, dtype, crossed):
    encoded = crossed(encode(payload(prototypes((0, label)))))
    assert encoded["prototypes.labels"].numpy().dtype == dtype
    assert lone(decode(encoded, (PROTOTYPES,), label + 1, D, Limits(1e6))).labels.tolist() == [0, label]


@pytest.mark.parametrize(("width", "values"), [("features", D), ("classes", K), (5, 5)])
def test_a_row_has_the_width_that_its_part_says(width, values):
    part = Part("prototypes", width=width)
    assert part.count_values(K, D) == values
    assert arrived(encode(payload(prototypes((0, 3), dim=values))), part).dim == values


def test_parts_of_a_message_stand_side_by_side():
    parts = (Part("prototypes"), Part("prototypes", "encoder-means"), Part("weights", "head"))
    head = Weights({"w": torch.ones(2, 3), "b": torch.zeros(2)})
    record = encode({"prototypes": prototypes((1,)), "encoder-means": prototypes(()), "head": head}, parts)
    fields = {f"{name}.{field}" for name in ("prototypes", "encoder-means") for field in ("labels", "vectors")}
    assert set(record) == fields | {"head.values", "head.small"}
    back = decode(record, parts, K, D, Limits(1e6, {"head": head.layout}))
    assert list(back) == [part.name for part in parts]
    assert back["head"].tensors["w"].equal(head.tensors["w"])


@pytest.mark.parametrize(
    ("dtype", "value", "named"),
    [
        ("float16", 65520.0, "65520, beyond 65504"),
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


# --- mixtures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (mixtures(), COMPONENTS),
        (mixtures(counts=(4, 4, 1, 9, 9, 9)), replace(COMPONENTS, counts=True)),
        (mixtures(()), COMPONENTS),
        (mixtures((1,) * 40), MIXTURES),
    ],
)
def test_mixtures_cross_unchanged_and_as_tensors_of_a_checkpoint(sent, part, crossed):
    assert same(lone(from_tensors(to_tensors(payload(sent)))), sent)
    record = crossed(encode(payload(sent)))
    assert same(arrived(record, part), sent)
    assert value_bytes(record) == len(sent) * (2 * D + 1) * 4


def test_a_fit_in_float64_is_legal_as_float32_however_small_its_variances_and_weights_are(crossed):
    """Of samples that coincide the variance is the floor, 1e-12; below float32's range all is its smallest."""
    rows = torch.randn(40, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = torch.cat([rows, torch.ones(5, D, dtype=torch.float64), rows[:1] * 1e-30])
    fitted = fit_class_mixtures(features, torch.tensor([0] * 40 + [1] * 5 + [3]), 3, seed=1).mixtures
    decoded = arrived(crossed(encode(payload(fitted))), replace(COMPONENTS, counts=True))
    for name in ("means", "variances", "weights"):
        torch.testing.assert_close(getattr(decoded, name).double(), getattr(fitted, name), rtol=6e-8, atol=1e-38)
    rows = torch.zeros(2, D, dtype=torch.float64)
    least = MixtureSet(torch.tensor([0, 0]), rows, rows + 1e-60, torch.tensor([1.0, 1e-50], dtype=torch.float64))
    decoded = arrived(crossed(encode(payload(least))), COMPONENTS)
    assert decoded.variances.unique().tolist() == [TINY]
    assert decoded.weights.tolist() == [1.0, TINY]


@pytest.mark.parametrize("apart", [0.0, 50.0, 99.0])
def test_no_legal_upload_makes_a_download_that_clients_refuse(apart):
    """The mean square of a component is bounded, and fusing by moments keeps it."""
    means = torch.zeros(2, D)
    means[0, 0], means[1, 0] = apart, -apart
    variances = torch.full((2, D), (100.0**2 - apart**2) / D * 0.999999)
    sent = MixtureSet(torch.tensor([0, 0]), means, variances, torch.tensor([0.5, 0.5]))
    fused = fuse({0: arrived(encode(payload(sent)), COMPONENTS, max_norm=100.0)}, math.inf)
    assert len(fused) == 1
    assert arrived(encode(payload(fused)), MIXTURES, max_norm=100.0).means.shape == (1, D)


# --- weights ----------------------------------------------------------------------------------------------------


def test_small_tensors_cross_as_float32_whatever_the_format():
    sent = Weights({"b": torch.tensor([1e6, 1e-7])})
    part = Part("weights", "head", dtype="float16")
    assert arrived(encode({"head": sent}, (part,)), part, {"head": sent.layout}).tensors["b"].equal(sent.tensors["b"])


def test_ragged_weights_come_with_their_shapes():
    part, largest = Part("weights", "w", ragged=True), {"w": (("a", (4, 3)), ("b", (2,)))}
    for rows in (4, 0):
        sent = Weights({"a": torch.ones(rows, 1), "b": torch.zeros(2)})
        record = encode({"w": sent}, (part,))
        assert record["w.shapes"].numpy().tolist() == [rows, 1, 2]
        assert value_bytes(record) == 4 * (rows + 2)
        assert arrived(record, part, largest).layout == sent.layout


# --- what a method says of its messages -------------------------------------------------------------------------


def test_parts_without_a_format_of_their_own_have_the_run_s():
    exchange = Exchange((PROTOTYPES, Part("weights", "head", dtype="float32")), (MIXTURES,))
    found = exchange.in_format("float16")
    assert [part.dtype for part in (*found.up, *found.down)] == ["float16", "float32", "float16"]
