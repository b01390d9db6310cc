"""MixtureSet: what it accepts, what it refuses, and the union of two."""

import pytest
import torch

from protosphere.prototypes.mixture_set import MixtureSet


def a_set(labels=(0, 0, 2), weights=(0.25, 0.75, 1.0), counts=(8, 8, 3), dim=2, dtype=torch.float64):
    rows = torch.arange(len(labels) * dim, dtype=dtype).reshape(len(labels), dim)
    counts = None if counts is None else torch.tensor(counts)
    return MixtureSet(torch.tensor(labels), rows, rows + 0.5, torch.tensor(weights, dtype=dtype), counts)


def test_classes_components_and_weights_that_went_through_16_bits():
    mixtures = a_set()
    assert (mixtures.classes().tolist(), mixtures.components().tolist()) == ([0, 2], [2, 1])
    nothing = MixtureSet.empty(4)
    assert (len(nothing), nothing.dim, nothing.classes().tolist(), nothing.components().tolist()) == (0, 4, [], [])
    narrow = a_set().to(dtype=torch.float32)
    assert {narrow.means.dtype, narrow.variances.dtype, narrow.weights.dtype} == {torch.float32}
    # these do not sum to one, but still fit
    rounded = torch.full((7,), 1 / 7, dtype=torch.float64).to(torch.float16).double()
    assert rounded.sum() != 1
    a_set(labels=[4] * 7, weights=rounded.tolist(), counts=None)


def weighing(*shares):
    """One class with these weights, and a class of one component, which whatever is done to weights leaves alone."""
    weights = torch.tensor([*shares, sum(shares)], dtype=torch.float64) / sum(shares)
    labels = torch.tensor([2] * len(shares) + [5])
    return MixtureSet(labels, torch.zeros(len(labels), 1).double(), torch.ones(len(labels), 1).double(), weights)


@pytest.mark.parametrize(
    ("shares", "steps", "expected"),
    [
        ((1, 1), 4, (1 / 2, 1 / 2)),
        ((11, 5), 4, (3 / 4, 1 / 4)),
        ((3, 2), 8, (5 / 8, 3 / 8)),
        ((9999, 1), 64, (64 / 65, 1 / 65)),  # one step at least
        ((1, 1, 1), 64, (1 / 3, 1 / 3, 1 / 3)),
        ((4, 3, 1), 3, (2 / 4, 1 / 4, 1 / 4)),
        ((7, 1, 1), 3, (2 / 4, 1 / 4, 1 / 4)),  # as many steps as components
    ],
)
def test_weights_are_rounded_to_whole_shares_and_sum_to_one_again(shares, steps, expected):
    found = weighing(*shares).with_rounded_weights(steps)
    assert found.weights.tolist() == pytest.approx([*expected, 1], abs=1e-15)
    assert found.labels.tolist() == [2] * len(shares) + [5]


def test_rounding_changes_weights_alone_and_needs_a_step_a_component():
    before = a_set(dtype=torch.float32)
    after = before.with_rounded_weights(5)
    for part in ("labels", "means", "variances", "counts"):
        assert torch.equal(getattr(after, part), getattr(before, part))
    assert weighing(1, 1, 1).with_rounded_weights(3)
    with pytest.raises(ValueError, match="3 components of a class cannot have weights in whole shares of 1/2"):
        weighing(1, 1, 1).with_rounded_weights(2)


def test_the_mean_of_a_class_is_that_of_its_components_by_weight():
    means = torch.tensor([[4.0, -8.0], [0.0, 2.0], [1.0, 1.0], [5.0, 7.0]])
    weights = torch.tensor([0.25, 0.75, 1.0, 1.0])
    found = MixtureSet(torch.tensor([1, 1, 3, 6]), means, torch.ones(4, 2), weights).class_means()
    assert found.labels.tolist() == [1, 3, 6]
    assert found.vectors.tolist() == [[1.0, -0.5], [1.0, 1.0], [5.0, 7.0]]
    assert found.counts is None


def test_an_update_replaces_whole_classes_and_keeps_the_others():
    older = a_set()
    newer = a_set(labels=(0, 1, 1, 3), weights=(1.0, 0.5, 0.5, 1.0), counts=(5, 6, 6, 7), dtype=torch.float32)
    both = older.updated_by(newer)
    assert both.labels.tolist() == [0, 1, 1, 2, 3]
    assert both.means.tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [6, 7]]
    assert both.variances.tolist() == (both.means + 0.5).tolist()
    assert both.weights.tolist() == [1, 0.5, 0.5, 1, 1]
    assert both.counts.tolist() == [5, 6, 6, 3, 7]
    assert both.means.dtype == torch.float32
    assert older.updated_by(newer.without_counts()).counts is None
    assert older.updated_by(MixtureSet.empty(2)).labels.tolist() == [0, 0, 2]
    with pytest.raises(ValueError, match=r"2 dimensions.*3.*feature-dim"):
        older.updated_by(a_set(dim=3))


GOOD = {
    "labels": torch.tensor([1, 1]),
    "means": torch.zeros(2, 3),
    "variances": torch.ones(2, 3),
    "weights": torch.tensor([0.5, 0.5]),
    "counts": torch.tensor([4, 4]),
}


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("labels", torch.tensor([[1, 1]]), r"shape \(1, 2\)"),
        ("labels", torch.tensor([1, 1], dtype=torch.int32), "torch.int32"),
        ("labels", torch.tensor([-1, -1]), "the label -1"),
        ("labels", torch.tensor([2, 1]), r"\[2, 1\].*must ascend"),
        ("means", torch.zeros(2, 3, dtype=torch.int64), r"means.*torch.int64"),
        ("means", torch.zeros(2), r"means.*\(2,\)"),
        ("means", torch.zeros(3, 3), "2 labels but 3 means"),
        ("variances", torch.ones(2, 2), r"variances.*\(2, 2\).*\(2, 3\)"),
        ("variances", torch.ones(2, 3, dtype=torch.float64), "torch.float64.*torch.float32"),
        *(("variances", torch.full((2, 3), v), "variance that is not above 0") for v in (0.0, -1.0, float("nan"))),
        ("weights", torch.ones(2, 1), r"weights.*\(2, 1\)"),
        ("weights", torch.tensor([0.5, 0.5], dtype=torch.float64), "weights.*torch.float64"),
        *(("weights", torch.tensor(pair), "weight that is not above 0") for pair in ([1.0, 0.0], [1.5, -0.5])),
        *(("weights", torch.tensor([0.5, 0.5 + by]), f"class 1 .* sum to {1 + by}") for by in (0.01, -0.01)),
        ("weights", torch.tensor([0.5, float("inf")]), "sum to inf"),
        ("counts", torch.tensor([4.0, 4.0]), "counts.*torch.float32"),
        ("counts", torch.tensor([4]), r"counts.*\(1,\)"),
        ("counts", torch.tensor([0, 0]), "count of 0"),
        ("counts", torch.tensor([4, 5]), "different counts within class 1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(part, value, message):
    MixtureSet(**GOOD)
    with pytest.raises(ValueError, match=message):
        MixtureSet(**(GOOD | {part: value}))
