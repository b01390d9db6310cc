"""The three solvers: Algorithm 1 step by step, published minima, and the nearest of all simplices."""

import math

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import minimize

from protosphere.prototypes import solvers
from protosphere.prototypes.sphere import measure, potential, unit_rows

# Minima of the Thomson problem, d = 3 and s = 1, by number of points: https://en.wikipedia.org/wiki/Thomson_problem,
# after D. J. Wales and S. Ulker, Phys. Rev. B 74, 212101 (2006) and the Cambridge Cluster Database.
THOMSON_MINIMA = {2: 0.5, 4: 3.674234614, 5: 6.474691495, 8: 19.675287861, 12: 49.165253058}


def on_sphere(K, d, seed=0):
    return unit_rows(np.random.default_rng(seed).standard_normal((K, d)))


def ring(K, d):
    """K points on a circle in d dimensions: a stationary point of every energy, a saddle for K > 3."""
    angles = 2 * np.pi * np.arange(K) / K
    points = np.zeros((K, d))
    points[:, 0], points[:, 1] = np.cos(angles), np.sin(angles)
    return points


def simplex_energy(K, s):
    pairs, distance = K * (K - 1) / 2, math.sqrt(2 * K / (K - 1))
    return -pairs * math.log(distance) if s == 0 else math.log(pairs * distance**-s)


def algorithm_1(points, iterations):
    """Algorithm 1 through K x K x d arrays: its path, full and tangential mean force norms."""
    velocity = np.zeros_like(points)
    path, full, tangential = [], [], []
    for t in range(1, iterations + 1):
        offsets = points[:, None, :] - points[None, :, :]
        squares = (offsets**2).sum(axis=2)
        np.fill_diagonal(squares, np.inf)
        force = (offsets / squares[:, :, None]).sum(axis=1)
        across = force - (force * points).sum(axis=1, keepdims=True) * points
        full.append(np.linalg.norm(force, axis=1).mean())
        tangential.append(np.linalg.norm(across, axis=1).mean())
        rate = 0.1
        for _ in range((t - 1) // 10):
            rate *= 0.95
        velocity = 0.9 * velocity + rate * force
        moved = points + velocity
        points = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        path.append(points)
    return path, np.array(full), np.array(tangential)


@pytest.mark.parametrize("iterations", [1, 10, 11, 35])
def test_thomson_is_algorithm_1_step_by_step(iterations):
    start = on_sphere(7, 4)
    found = solvers.thomson(start, iterations, "none", 1e-3)
    path, _, _ = algorithm_1(start, iterations)
    np.testing.assert_allclose(found.points, path[-1], atol=1e-10)
    assert (found.iterations, found.ended_by) == (iterations, "limit")


@pytest.mark.parametrize(
    ("stop", "epsilon", "start"),
    [
        ("force", 1e-2, on_sphere(12, 6, seed=3)),
        ("force", 1e-4, on_sphere(12, 6, seed=3)),
        ("force", 1e-4, on_sphere(10, 64)),
        ("tangential", 0.02, on_sphere(12, 6, seed=3)),
        # here an eleventh calm iteration comes before ten in a row do
        ("tangential", 0.03, on_sphere(4, 2, seed=37)),
    ],
)
def test_thomson_stops_after_ten_calm_iterations_in_a_row(stop, epsilon, start):
    path, full, tangential = algorithm_1(start, 300)
    if stop == "force":
        # as the release prints it, with so many decimals, from its iteration 10 on, which it counts from 0
        decimals = round(-math.log10(epsilon))
        printed = [f"{force:.{decimals}f}" for force in full]
        calm = np.array([t > 10 and printed[t] == printed[t - 1] for t in range(len(full))])
    else:
        calm = tangential < epsilon * full
    expected = next(t for t in range(10, 301) if calm[t - 10 : t].all())
    assert 10 < expected < 300
    found = solvers.thomson(start, 300, stop, epsilon)
    assert (found.iterations, found.ended_by) == (expected, "stop")
    np.testing.assert_allclose(found.points, path[expected - 1], atol=1e-8)


@pytest.mark.parametrize("K", THOMSON_MINIMA)
def test_riesz_reaches_the_published_minima_of_the_thomson_problem(K):
    found = solvers.riesz(on_sphere(K, 3), 1.0, np.random.default_rng(0))
    assert found.ended_by == "tolerance"
    assert math.exp(measure(found.points, 1.0)[0]) == pytest.approx(THOMSON_MINIMA[K], rel=2e-8)


@pytest.mark.parametrize("s", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("K", "d"), [(2, 2), (4, 3), (5, 9), (11, 10)])
def test_riesz_finds_the_simplex_where_there_is_room_for_it(K, d, s):
    found = solvers.riesz(on_sphere(K, d), s, np.random.default_rng(0))
    value, least, _, largest = measure(found.points, s)
    bound = math.sqrt(2 * K / (K - 1))
    assert value == pytest.approx(simplex_energy(K, s), rel=1e-7)
    assert least == pytest.approx(bound, rel=1e-3)
    assert largest == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize(("K", "d"), [(3, 3), (4, 3), (6, 5), (6, 12), (12, 30)])
def test_riesz_leaves_the_saddle_of_points_on_a_circle(K, d):
    found = solvers.riesz(ring(K, d), 0.0, np.random.default_rng(0))
    assert measure(found.points, 0.0)[0] == pytest.approx(simplex_energy(K, 0.0), rel=1e-7)


def test_riesz_says_when_its_evaluations_ran_out(monkeypatch):
    monkeypatch.setattr(solvers, "RIESZ_EVALUATIONS", 5)
    found = solvers.riesz(on_sphere(30, 5), 0.0, np.random.default_rng(0))
    assert found.ended_by == "limit"
    assert found.iterations <= 5


DIRECTIONS = [on_sphere(K, d) for K, d in ((2, 2), (3, 2), (10, 9), (65, 64))]
# and directions without full rank
DIRECTIONS += [ring(4, 8), np.tile(on_sphere(1, 8), (5, 1)), ring(2, 8)[[0, 1, 0, 1, 0, 1]]]


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_simplex_is_regular_to_rounding(directions):
    K, points = len(directions), solvers.simplex(directions).points
    np.testing.assert_allclose(points @ points.T, (K * np.eye(K) - 1) / (K - 1), atol=1e-13)


@pytest.mark.parametrize(("K", "d"), [(2, 2), (3, 2), (5, 4), (5, 9), (12, 30)])
def test_simplex_equals_scipys_procrustes_of_another_simplex(K, d):
    directions = on_sphere(K, d)
    # a simplex of another make: the centred unit vectors of K dimensions, brought to d dimensions by an SVD
    centred = math.sqrt(K / (K - 1)) * (np.eye(K) - 1 / K)
    coordinates = centred @ np.linalg.svd(centred)[2].T[:, : K - 1]
    other = np.pad(coordinates, ((0, 0), (0, d - K + 1)))
    turn, _ = orthogonal_procrustes(other, directions)
    np.testing.assert_allclose(solvers.simplex(directions).points, other @ turn, atol=1e-10)


@pytest.mark.parametrize("s", [0.0, 1.0, 3.0])
def test_what_riesz_minimises_has_the_gradient_of_finite_differences_off_the_sphere_too(monkeypatch, s):
    asked = []

    def minimise(objective, start, **options):
        asked.append(objective)
        return minimize(objective, start, **options)

    monkeypatch.setattr("scipy.optimize.minimize", minimise)
    solvers.riesz(on_sphere(5, 3), s, np.random.default_rng(0))
    free = np.random.default_rng(1).standard_normal(15)
    value, gradient = asked[0](free)
    assert value == pytest.approx(potential(unit_rows(free.reshape(5, 3)), s)[0])
    slopes = [(asked[0](free + step)[0] - asked[0](free - step)[0]) / 2e-6 for step in 1e-6 * np.eye(15)]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-7)
