"""Mixtures on the wire: round trips, what float32 cannot hold, sizes, and each thing that is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from protosphere.prototypes.fusion import fuse
from protosphere.prototypes.mixture import fit_class_mixtures
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.wire.arrays import Limits, decode, encode, value_bytes
from protosphere.wire.messages import decode_instruction, encode_instruction
from protosphere.wire.parts import PROTOTYPES, Exchange, Part
from protosphere.wire.payloads import Instruction, from_tensors, to_tensors
from tests.payloads import lone, payload
from tests.strategies.sets import same

K, D, N = 6, 4, 3
UP = (Part("mixtures", components=N),)
COUNTED = (Part("mixtures", components=N, counts=True),)
DOWN = (Part("mixtures", components=None),)
TINY = float(np.finfo(np.float32).tiny)


def mixtures(labels=(0, 0, 2, 5, 5, 5), counts=None, dim=D, dtype=torch.float32, seed=0):
    """Any mixtures; the components of a class weigh 1 : 2 : 3 ..."""
    random = torch.Generator().manual_seed(seed)
    weights = [labels[: row + 1].count(label) for row, label in enumerate(labels)]
    sums = [sum(w for w, other in zip(weights, labels, strict=True) if other == label) for label in labels]
    shape = (len(labels), dim)
    return MixtureSet(
        torch.tensor(labels, dtype=torch.int64),
        torch.randn(shape, generator=random, dtype=dtype),
        torch.rand(shape, generator=random, dtype=dtype) + 0.1,
        torch.tensor([w / s for w, s in zip(weights, sums, strict=True)], dtype=dtype),
        None if counts is None else torch.tensor(counts, dtype=torch.int64),
    )


def record(**changed):
    """An upload made by hand from numpy arrays; None leaves one out."""
    arrays = {
        "labels": np.array([0, 0, 2], np.int16),
        "means": np.ones((3, D), np.float32),
        "variances": np.full((3, D), 0.5, np.float32),
        "weights": np.array([0.25, 0.75, 1], np.float32),
    } | changed
    return ArrayRecord({f"mixtures.{name}": Array(values) for name, values in arrays.items() if values is not None})


def arrived(upload, parts=UP):
    """As the other side takes it."""
    return decode(upload, parts, K, D, Limits(100.0))


# --- round trips ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "parts"),
    [
        (mixtures(), UP),
        (mixtures(counts=(4, 4, 1, 9, 9, 9)), COUNTED),
        (mixtures((3,)), UP),
        (mixtures(()), UP),
        (mixtures((), counts=()), COUNTED),
        (mixtures((1,) * 40), DOWN),
    ],
)
def test_mixtures_cross_unchanged(sent, parts, crossed):
    assert sent.kind == "mixtures"
    assert same(lone(from_tensors(to_tensors(payload(sent)))), sent)
    assert same(lone(arrived(crossed(encode(payload(sent))), parts)), sent)


def test_a_fit_in_float64_is_legal_as_float32_however_small_its_variances_and_weights_are(crossed):
    """Of samples that coincide the variance is the floor, 1e-12; and below float32's range all is its smallest."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(40, D, generator=random, dtype=torch.float64)
    features = torch.cat([rows, torch.ones(5, D, dtype=torch.float64), rows[:1] * 1e-30, rows[:2] * 1e-3])
    labels = torch.tensor([0] * 40 + [1] * 5 + [3] + [4] * 2)
    fitted = fit_class_mixtures(features, labels, N, seed=1).mixtures
    assert fitted.means.dtype == torch.float64
    assert float(fitted.variances.min()) <= 1e-12
    decoded = lone(arrived(crossed(encode(payload(fitted))), COUNTED))
    assert torch.equal(decoded.labels, fitted.labels)
    assert torch.equal(decoded.counts, fitted.counts)
    for name in ("means", "variances", "weights"):
        torch.testing.assert_close(getattr(decoded, name).double(), getattr(fitted, name), rtol=6e-8, atol=1e-38)
    rows = torch.zeros(2, D, dtype=torch.float64)
    least = MixtureSet(torch.tensor([0, 0]), rows, rows + 1e-60, torch.tensor([1.0, 1e-50], dtype=torch.float64))
    decoded = lone(arrived(crossed(encode(payload(least))), UP))
    assert decoded.variances.unique().tolist() == [TINY]
    assert decoded.weights.tolist() == [1.0, TINY]


# --- sizes ----------------------------------------------------------------------------------------------------


def test_payload_bytes_are_means_variances_and_weights(crossed):
    sent = mixtures(counts=(4, 4, 1, 9, 9, 9))
    up = encode(payload(sent))
    assert value_bytes(up) == value_bytes(crossed(up)) == 6 * (2 * D + 1) * 4
    assert value_bytes(encode(payload(mixtures((1,), dim=7)))) == 15 * 4


def test_of_spherical_components_one_variance_crosses(refused):
    parts = (Part("mixtures", components=2, width=1),)
    variances = torch.tensor([1.0, 2.0, 0.5]).unsqueeze(1).expand(3, D)
    sent = replace(mixtures((0, 0, 2)), variances=variances)
    upload = encode(payload(sent), parts)
    assert upload["mixtures.variances"].numpy().shape == (3, 1)
    assert torch.equal(lone(arrived(upload, parts)).variances, variances)
    assert f"float32 of (3, {D}) were agreed" in refused(arrived, upload, UP)
    assert "float32 of (3, 1) were agreed" in refused(arrived, encode(payload(sent)), parts)


# --- what is refused --------------------------------------------------------------------------------------------


def with_entry(name, value):
    """The array of that name with one entry changed."""
    values = record()[f"mixtures.{name}"].numpy().copy()
    values[1, 2] = value
    return values


def ones(*shape, kind=np.float32):
    return np.ones(shape, kind)


MISSING = "where ['mixtures.labels', 'mixtures.means', 'mixtures.variances', 'mixtures.weights'] belong"
NO_NUMBER = "hold a number that is not finite"
NOT_POSITIVE = "that is not above 0"
TOO_LONG = "above `max-prototype-norm` 100"
# array -> (values with which it is refused, words of the reason)
BAD = {
    "weights": [
        ([0.25, 0.7, 1], "weights of class 0 in a mixture set sum to 0.95"),
        ([0.25, 0.75, 1.01], "weights of class 2 in a mixture set sum to 1.01"),
        *((weights, f"a weight {NOT_POSITIVE}") for weights in ([0, 1, 1], [-0.5, 1.5, 1])),
        # what float32 holds only as a subnormal
        *(([1, smallest, 1], f"a weight {NOT_POSITIVE}") for smallest in (1e-45, 1e-40)),
        *(([value, 0.75, 1], f"the weights {NO_NUMBER}") for value in (math.nan, math.inf)),
        (ones(3, kind=np.int32), "the weights are int32 of shape (3,)"),
        *((values, f"the weights are float32 of shape {values.shape}") for values in (ones(4), ones(3, 1), ones())),
        (None, MISSING),
    ],
    "variances": [
        *((with_entry("variances", value), f"a variance {NOT_POSITIVE}") for value in (0, -0.0, -1e-30)),
        *((with_entry("variances", value), f"the variances {NO_NUMBER}") for value in (math.nan, math.inf)),
        (with_entry("variances", 1.1e4), f"norm 105, {TOO_LONG}"),
        # with the means' 4 * 1 just above 100 squared, though neither part is
        (np.full((3, D), 2499.5, np.float32), TOO_LONG),
        (ones(3, D, kind=np.float16), "the variances are float16"),
        *((values, f"the variances are float32 of shape {values.shape}") for values in (ones(3), ones(3, D, D))),
    ],
    "means": [
        *((with_entry("means", value), f"the means {NO_NUMBER}") for value in (math.nan, -math.inf)),
        # the square of the second is no float32
        *((with_entry("means", value), TOO_LONG) for value in (-101.0, 3e38)),
        (ones(3, D, kind=np.float64), "the means are float64 of shape (3, 4), float32 of (3, 4) were"),
        *(
            (values, f"the means are float32 of shape {values.shape}")
            for values in (ones(3, D - 1), ones(2, D), ones(1, 3, D))
        ),
        (None, MISSING),
    ],
    "labels": [
        *((np.array(labels, np.int16), "the labels do not ascend") for labels in ([2, 2, 0], [0, 2, 0])),
        *((np.array(labels, np.int16), "a label lies outside 0 to 5") for labels in ([0, 0, K], [-1, 0, 0])),
        (np.array([0, 0, 2]), "the labels are int64 of shape (3,), 3 integers"),
        (np.zeros((3, 1), np.int16), "the labels are int16 of shape (3, 1)"),
        (np.array(2, np.int16), "the labels are int16 of shape (), 1 integers"),
        (None, MISSING),
    ],
    "vectors": [(ones(3, D), "'mixtures.vectors', 'mixtures.weights'] where")],
    "scales": [(ones(3), "'mixtures.scales', 'mixtures.variances'")],
    "counts": [(ones(3, kind=np.int64), "['mixtures.counts', 'mixtures.labels'")],
}


@pytest.mark.parametrize(("name", "values", "said"), [(name, *row) for name, rows in BAD.items() for row in rows])
def test_bad_mixtures_are_refused_with_the_reason_up_and_down(name, values, said, crossed, refused):
    changed = {name: np.array(values, np.float32) if isinstance(values, list) else values}
    for parts in (UP, DOWN):
        assert said in refused(arrived, crossed(record(**changed)), parts)


def test_weights_may_be_off_by_rounding_alone():
    for off in (-9e-4, 9e-4):
        lone(arrived(record(weights=np.array([0.25, 0.75, 1 + off], np.float32)), UP))


@pytest.mark.parametrize(("agreed", "sent"), [(1, 2), (2, 3), (3, 4), (4, 60)])
def test_a_component_more_than_agreed_is_refused_and_of_downloads_no_number_is(agreed, sent, refused):
    parts = (Part("mixtures", components=agreed),)
    labels = (1,) * agreed + (4,) * sent
    reason = refused(arrived, encode(payload(mixtures(labels))), parts)
    assert ("not unique" if agreed == 1 else f"class 4 has {sent} components, at most {agreed} were") in reason
    assert len(lone(arrived(encode(payload(mixtures(labels))), DOWN))) == agreed + sent
    most = (1,) * agreed + (4,) * agreed
    assert len(lone(arrived(encode(payload(mixtures(most))), parts))) == 2 * agreed


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (None, "'mixtures.variances', 'mixtures.weights'] where"),
        ([3, 4, 5], "different counts within class 0"),
        *((counts, "a class count lies outside 1 to 2147483647") for counts in ([0, 0, 5], [3, 3, -5], [3, 3, 2**31])),
        *((counts, "are not 3 int64 numbers") for counts in (np.int32([3, 3, 5]), [3.0, 3.0, 5.0], [3, 5])),
    ],
)
def test_bad_counts_are_refused(counts, said, refused):
    counts = None if counts is None else np.array(counts)
    assert said in refused(arrived, record(counts=counts), COUNTED)
    decoded = lone(arrived(record(counts=np.array([3, 3, 2**31 - 1])), COUNTED))
    assert decoded.counts.tolist() == [3, 3, 2**31 - 1]


def test_a_kind_is_not_read_as_the_other(refused):
    """Neither end takes mixtures for prototypes, whatever the message says that it holds."""
    down = encode_instruction(Instruction("run", 2, payload(mixtures())))
    wrong, right = Exchange((), (PROTOTYPES,)), Exchange((), DOWN)
    assert "['prototypes.labels', 'prototypes.vectors'] belong" in refused(
        decode_instruction, down, wrong, K, D, Limits(100.0)
    )
    renamed = ArrayRecord({name.replace("mixtures", "prototypes"): array for name, array in down["arrays"].items()})
    assert "['prototypes.labels', 'prototypes.vectors'] belong" in refused(arrived, renamed, (PROTOTYPES,))
    back = decode_instruction(down, right, K, D, Limits(100.0))
    assert same(lone(back.payload), mixtures())


# --- what a legal upload may not do to others -------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_smallest_weight_beside_the_largest_class_is_fused(weighting):
    """Its share of the class is below float32: it must not end the round."""
    means, small = torch.tensor([[0.0, 0], [9, 9], [5, 0]]), torch.full((3, 2), 1e-3)
    labels, weights, counts = torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, TINY]), torch.tensor([1, 1])
    one = MixtureSet(labels, means[:2], small[:2], weights, counts)
    large = MixtureSet(labels[:1], means[2:], small[2:], torch.ones(1), torch.tensor([50_000_000]))
    fused = fuse({0: one, 1: large}, 0.0, weighting=weighting)
    assert len(fused) == 3
    assert float(fused.weights.min()) > 0


@pytest.mark.parametrize("apart", [0.0, 50.0, 90.0, 99.0])
def test_no_legal_upload_makes_a_download_that_clients_refuse(apart):
    """The mean square of a component is bounded, and fusing by moments keeps it."""
    means = torch.zeros(2, D)
    means[0, 0], means[1, 0] = apart, -apart
    variances = torch.full((2, D), (100.0**2 - apart**2) / D * 0.999999)
    sent = MixtureSet(torch.tensor([0, 0]), means, variances, torch.tensor([0.5, 0.5]))
    fused = fuse({0: lone(arrived(encode(payload(sent)), UP))}, math.inf)
    assert len(fused) == 1
    assert lone(arrived(encode(payload(fused)), DOWN)).means.shape == (1, D)


def test_the_bound_lets_a_download_pass_that_float32_has_rounded_up_and_no_upload(refused):
    """What the server fuses of legal uploads may come out a rounding above the bound, and no more."""
    at_bound = np.zeros((3, D), np.float32)
    for above, passes in ((5e-6, True), (5e-5, False)):
        at_bound[0, 0] = 100 * (1 + above)
        sent = record(means=at_bound, variances=np.full((3, D), TINY, np.float32))
        assert "above `max-prototype-norm` 100" in refused(arrived, sent, UP)
        if passes:
            assert float(lone(arrived(sent, DOWN)).means[0, 0]) > 100
        else:
            assert "above `max-prototype-norm` 100" in refused(arrived, sent, DOWN)
