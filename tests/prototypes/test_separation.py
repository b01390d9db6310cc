"""Distances and angles of prototypes, against loops, closed forms and what a rotation leaves alone."""

import math
from dataclasses import asdict

import pytest
import torch

from protosphere.prototypes.etf import simplex_etf
from protosphere.prototypes.separation import separation


def by_loops(vectors):
    rows = vectors.double().tolist()
    pairs = [(a, b) for i, a in enumerate(rows) for b in rows[:i]]
    distances = [math.dist(a, b) for a, b in pairs]
    norms = [math.hypot(*row) for row in rows]
    cosines = [sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b) for a, b in pairs]
    angles = [math.degrees(math.acos(max(-1.0, min(1.0, cosine)))) for cosine in cosines]
    K = len(rows)
    return {
        "classes": K,
        "distance_min": min(distances),
        "distance_mean": sum(distances) / len(pairs),
        "distance_bound": math.sqrt(2 * K / (K - 1) * sum(norm**2 for norm in norms) / K),
        "angle_min": min(angles),
        "angle_mean": sum(angles) / len(pairs),
        "angle_bound": math.degrees(math.acos(-1 / (K - 1))),
    }


@pytest.mark.parametrize(("classes", "dim", "dtype"), [(2, 1, torch.float64), (7, 3, torch.float32), (40, 64, None)])
def test_it_is_the_double_loop(classes, dim, dtype):
    vectors = 3 * torch.randn(classes, dim, generator=torch.Generator().manual_seed(1), dtype=dtype) + 1
    assert asdict(separation(vectors)) == pytest.approx(by_loops(vectors), rel=1e-6)


def test_rows_in_blocks_are_all_pairs(monkeypatch):
    vectors = torch.randn(23, 5, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr("protosphere.prototypes.separation.BLOCK_ENTRIES", 23 * 4)
    assert asdict(separation(vectors)) == pytest.approx(by_loops(vectors), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e-9])
def test_a_simplex_reaches_both_bounds(scale):
    found = separation(scale * simplex_etf(10, 64, seed=0))
    assert found.distance_min == pytest.approx(found.distance_bound, rel=1e-5)
    assert found.distance_bound == pytest.approx(scale * math.sqrt(20 / 9), rel=1e-5)
    assert found.angle_min == pytest.approx(found.angle_bound, rel=1e-5)
    assert found.angle_bound == pytest.approx(math.degrees(math.acos(-1 / 9)))


def test_near_rows_keep_their_digits():
    vectors = torch.tensor([[1e6, 0.0], [1e6, 1e-3]], dtype=torch.float64)
    found = separation(vectors)
    assert found.distance_min == pytest.approx(1e-3, rel=1e-12)
    assert found.angle_min == pytest.approx(math.degrees(1e-9), rel=1e-6)


def test_a_row_of_zeros_has_distances_but_no_angle():
    found = separation(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    assert (found.distance_min, found.angle_min, found.angle_bound) == (5.0, None, None)
    three = separation(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1e-30]]))
    assert (three.angle_min, three.angle_bound) == (pytest.approx(90), pytest.approx(180))


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_have_none(rows):
    assert separation(torch.ones(rows, 3)) is None
