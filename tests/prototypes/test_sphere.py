"""Distances, energy and force on the sphere against naive double loops; ties and zeros."""

import math

import numpy as np
import pytest

from protosphere.prototypes import sphere


def on_sphere(K, d, seed=0):
    return sphere.unit_rows(np.random.default_rng(seed).standard_normal((K, d)))


def beside(points, row, shift):
    """A unit row at about this distance from another."""
    return sphere.unit_rows(points[row : row + 1] + shift * np.eye(points.shape[1])[:1])


def naive_energy(points, s):
    total = 0.0
    for j in range(len(points)):
        for k in range(j):
            distance = math.dist(points[j], points[k])
            total += -math.log(distance) if s == 0 else distance**-s
    return total


def naive_force(points, s):
    force = np.zeros_like(points)
    for j in range(len(points)):
        for k in range(len(points)):
            if j != k:
                offset = points[j] - points[k]
                force[j] += (s or 1.0) * offset / np.linalg.norm(offset) ** (s + 2)
    return force


@pytest.fixture(params=[1, 17, 40, 10**6], ids="block of {} entries".format)
def block_entries(request, monkeypatch):
    """13 points in blocks of one row, of one, of three rows with a smaller last block, and all at once."""
    monkeypatch.setattr(sphere, "BLOCK_ENTRIES", request.param)


@pytest.mark.usefixtures("block_entries")
@pytest.mark.parametrize("s", [0.0, 0.5, 1.0, 2.0, 7.0])
def test_energy_force_and_distances_equal_double_loops_in_blocks_of_any_size(s):
    points = on_sphere(13, 4)
    energy = naive_energy(points, s)
    value, force = sphere.potential(points, s)
    expected = energy if s == 0 else math.log(energy)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(force * (1 if s == 0 else energy), naive_force(points, s), rtol=1e-11, atol=1e-11)

    distances = [math.dist(points[j], points[k]) for j in range(13) for k in range(j)]
    measured = sphere.measure(points, s)
    assert measured == pytest.approx((expected, min(distances), np.mean(distances), max(distances)), rel=1e-12)


@pytest.mark.usefixtures("block_entries")
def test_log_force_is_equation_11_in_blocks_of_any_size():
    points = on_sphere(13, 4)
    np.testing.assert_allclose(sphere.log_force(points), naive_force(points, 0), rtol=1e-12, atol=1e-12)


def test_a_large_exponent_and_a_close_pair_do_not_overflow():
    points = on_sphere(6, 3)
    points[1] = beside(points, 0, 1e-5)
    value, force = sphere.potential(points, 500.0)
    assert value == pytest.approx(-500 * math.log(math.dist(points[0], points[1])), rel=1e-6)
    assert np.isfinite(force).all()


def test_directions_are_unit_and_zero_rows_get_a_seeded_one():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 1e-200], [-1e300, 1e300], [0.0, -0.0]])
    points, directionless = sphere.directions(vectors, np.random.default_rng(5))
    assert directionless == [1, 4]
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(points[[0, 2, 3]], [[0.6, 0.8], [0.5**0.5] * 2, [-(0.5**0.5), 0.5**0.5]], rtol=1e-15)
    assert np.linalg.norm(points[1] - points[4]) > 1e-3
    assert np.array_equal(points, sphere.directions(vectors, np.random.default_rng(5))[0])
    assert not np.array_equal(points, sphere.directions(vectors, np.random.default_rng(6))[0])


@pytest.mark.usefixtures("block_entries")
def test_of_coincident_rows_all_but_the_first_move_and_no_other_row_does():
    points = on_sphere(13, 4)
    points[[5, 9]] = points[2]
    points[7] = beside(points, 6, 5e-7)
    points[8] = beside(points, 6, 1e-5)
    moved = sphere.separated(points, np.random.default_rng(0))
    changed = np.flatnonzero((moved != points).any(axis=1))
    assert changed.tolist() == [5, 7, 9]
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, rtol=1e-15)
    assert np.linalg.norm(moved - points, axis=1)[changed].min() > 1e-6
    assert np.linalg.norm(moved - points, axis=1).max() < 5e-3
    assert sphere.measure(moved, 0.0)[1] > sphere.COINCIDENT


def test_many_coincident_rows_on_a_circle_find_room():
    points = np.tile([[0.6, 0.8]], (600, 1))
    moved = sphere.separated(points, np.random.default_rng(0))
    assert sphere.measure(moved, 0.0)[1] > sphere.COINCIDENT
    assert np.array_equal(points, np.tile([[0.6, 0.8]], (600, 1)))
