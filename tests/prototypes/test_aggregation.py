"""Aggregation against naive loops, scipy and the definition of each centre."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean

from protosphere.prototypes.aggregation import AGGREGATIONS, aggregate
from protosphere.prototypes.prototype_set import PrototypeSet


def random_sets(clients=9, classes=6, dim=4, seed=0, dtype=torch.float64):
    """Sets with ragged classes; class 0 is everybody's, the last one nobody's."""
    generator = torch.Generator().manual_seed(seed)
    sets = []
    for _ in range(clients):
        held = torch.rand(classes, generator=generator) < 0.6
        held[0], held[-1] = True, False
        labels = held.nonzero().flatten()
        vectors = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
        counts = torch.randint(1, 50, (len(labels),), generator=generator)
        sets.append(PrototypeSet(labels, vectors.to(dtype), counts))
    return sets


def by_class(sets):
    rows, counts = {}, {}
    for each in sets:
        for label, row, count in zip(each.labels.tolist(), each.vectors, each.counts.tolist(), strict=True):
            rows.setdefault(label, []).append(row.numpy())
            counts.setdefault(label, []).append(count)
    return rows, counts


def single(rows):
    """One prototype set of class 0 for each row."""
    return [PrototypeSet(torch.tensor([0]), torch.as_tensor(row, dtype=torch.float64)[None]) for row in rows]


def smallest_distance_sum(rows):
    """The geometric median by scipy: Nelder-Mead, which needs no derivative, from several starts."""
    rows = np.asarray(rows)
    starts = [rows.mean(axis=0), np.median(rows, axis=0), *rows]
    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20000, "maxfev": 20000}
    found = [minimize(distance_sum, start, args=(rows,), method="Nelder-Mead", options=options) for start in starts]
    return min(found, key=lambda each: each.fun)


def distance_sum(point, rows):
    return np.linalg.norm(np.asarray(rows) - point, axis=1).sum()


NAIVE = {
    "mean": lambda rows, counts: sum(rows) / len(rows),
    "weighted": lambda rows, counts: sum(n * row for n, row in zip(counts, rows, strict=True)) / sum(counts),
    "median": lambda rows, counts: np.median(rows, axis=0),
    # a share that cuts one off where a fifth of three or four would be nobody
    "trimmed-mean": lambda rows, counts: trim_mean(rows, 1 / 3 if len(rows) in (3, 4) else 0.2, axis=0),
    "geometric-median": lambda rows, counts: smallest_distance_sum(rows).x,
}


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_equals_the_naive_computation_class_by_class(how):
    sets = random_sets()
    result = aggregate(sets, how, trim=0.2)
    rows, counts = by_class(sets)
    assert result.labels.tolist() == sorted(rows)
    assert result.counts is None
    tolerance = 1e-4 if how == "geometric-median" else 1e-12
    for label, vector in zip(result.labels.tolist(), result.vectors.numpy(), strict=True):
        if how == "geometric-median" and len(rows[label]) <= 2:
            continue  # two rows have every point between them as median
        np.testing.assert_allclose(vector, NAIVE[how](rows[label], counts[label]), atol=tolerance)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_shifting_and_scaling_every_set_does_so_to_the_result_and_their_order_does_not_matter(how):
    sets = random_sets()
    found = aggregate(sets, how).vectors
    moved = [each.with_vectors(3 * each.vectors - 2) for each in sets[::-1]]
    torch.testing.assert_close(aggregate(moved, how).vectors, 3 * found - 2, rtol=0, atol=1e-7)
    (only,) = random_sets(clients=1)
    before = only.vectors.clone()
    torch.testing.assert_close(aggregate([only], how).vectors, before, rtol=0, atol=1e-12)
    assert torch.equal(only.vectors, before)
    nothing = PrototypeSet(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    result = aggregate([nothing, nothing], how)
    assert (len(result), result.dim) == (0, 3)


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_dtype_is_kept_and_sums_are_float64(how, dtype):
    result = aggregate(random_sets(dtype=dtype), how)
    assert result.vectors.dtype == dtype
    wide = [each.to(dtype=torch.float64) for each in random_sets(dtype=dtype)]
    torch.testing.assert_close(result.vectors, aggregate(wide, how).vectors.to(dtype), rtol=0, atol=0)


def test_trim_zero_is_the_mean_and_three_lose_one_at_each_end():
    sets = random_sets()
    torch.testing.assert_close(
        aggregate(sets, "trimmed-mean", trim=0.0).vectors, aggregate(sets, "mean").vectors, rtol=0, atol=1e-12
    )
    three = single([[0.0], [1.0], [8.0]])
    # a tenth of three is nobody, but one liar among them must not stay
    for trim in (0.1, 0.3, 0.34):
        assert float(aggregate(three, "trimmed-mean", trim=trim).vectors) == pytest.approx(1.0)
    two = single([[0.0], [8.0]])
    assert float(aggregate(two, "trimmed-mean", trim=0.3).vectors) == pytest.approx(4.0)


def test_geometric_median_leaves_a_row_that_the_mean_happens_to_hit():
    # the mean is the second row, which is not the median
    rows = np.array([[4.0, 0.0], [0.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [-2.0, 0.0]])
    assert not rows.mean(axis=0).any()
    point = aggregate(single(rows), "geometric-median").vectors[0].numpy()
    best = smallest_distance_sum(rows)
    assert distance_sum(point, rows) <= best.fun + 1e-9
    assert np.linalg.norm(point) > 0.1


@pytest.mark.parametrize(
    ("rows", "centre"),
    [
        ([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [90.0, 90.0]], [2.0, 2.0]),
        ([[0.0, 2.0], [4.0, 0.0]], [2.0, 1.0]),
        ([[1.0, -3.0]] * 5, [1.0, -3.0]),
        # the middle corner sees the other two under more than 120 degrees
        ([[-5.0, 0.0], [0.0, 0.5], [5.0, 0.0]], [0.0, 0.5]),
        ([[7.0, 7.0]] * 4 + [[0.0, 0.0], [0.0, 1.0], [3.0, 9.0]], [7.0, 7.0]),
    ],
)
def test_geometric_median_that_is_a_row_or_between_two_is_exact(rows, centre):
    assert aggregate(single(rows), "geometric-median").vectors[0].tolist() == centre
