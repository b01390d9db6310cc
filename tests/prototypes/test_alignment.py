"""The public entry: align on ordinary and degenerate prototypes."""

import math

import pytest
import torch

from protosphere.prototypes.alignment import SOLVERS, align

EACH = [name for name in SOLVERS if name != "auto"]


def vectors(K, d, seed=0, dtype=torch.float64):
    return torch.randn(K, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def check_distinct_unit_rows(result, K):
    points = result.points.double()
    assert points.isfinite().all()
    torch.testing.assert_close(points.norm(dim=1), torch.ones(K, dtype=torch.float64), rtol=0, atol=1e-6)
    assert torch.pdist(points).min() > 1e-4


@pytest.mark.parametrize("solver", EACH)
def test_the_same_call_gives_the_same_bits_and_shares_no_memory_with_its_argument(solver):
    given = vectors(10, 16)
    given[3], given[6] = given[4], 0
    one, other = align(given, solver, seed=7), align(given, solver, seed=7)
    assert torch.equal(one.points, other.points)
    assert (one.energy, one.iterations) == (other.energy, other.iterations)
    assert not torch.equal(one.points, align(given, solver, seed=8).points)
    unit = torch.nn.functional.normalize(vectors(1, 3))
    align(unit, solver).points.zero_()
    assert unit.any()


@pytest.mark.parametrize("solver", EACH)
@pytest.mark.parametrize("s", [0.0, 1.0])
def test_what_is_reported_is_what_the_points_are(solver, s):
    K = 7
    result = align(vectors(K, 9), solver, s=s)
    distances = torch.pdist(result.points)
    energy = -distances.log().sum() if s == 0 else distances.pow(-s).sum()
    assert result.energy == pytest.approx(float(energy), rel=1e-10)
    assert result.minimum_distance == pytest.approx(float(distances.min()))
    assert result.mean_distance == pytest.approx(float(distances.mean()))
    assert result.maximum_distance == pytest.approx(float(distances.max()))
    assert result.share == pytest.approx(float(distances.min()) / math.sqrt(2 * K / (K - 1)))
    assert result.solver == solver
    assert result.directionless == ()


def test_a_trace_has_the_distances_before_thomsons_first_iteration_and_after_each():
    given = vectors(7, 9)
    result = align(given, "thomson", iterations=3, traced=True)
    assert len(result.trace) == 4
    for iterations in (1, 2, 3):
        distances = torch.pdist(align(given, "thomson", iterations=iterations).points)
        ends = [float(value) for value in (distances.min(), distances.mean(), distances.max())]
        assert result.trace[iterations] == pytest.approx(ends)
    start = torch.pdist(torch.nn.functional.normalize(given, dim=1))
    assert result.trace[0] == pytest.approx([float(value) for value in (start.min(), start.mean(), start.max())])
    untraced = align(given, "thomson", iterations=3)
    assert untraced.trace == ()
    assert torch.equal(untraced.points, result.points)


def test_how_each_solver_ends():
    given = vectors(12, 15)
    ended = {solver: align(given, solver) for solver in EACH}
    assert {name: (each.ended_by, each.converged) for name, each in ended.items()} == {
        "thomson": ("limit", False),
        "riesz": ("tolerance", True),
        "simplex": ("exact", True),
    }
    assert ended["thomson"].iterations == 100
    assert 0 < ended["riesz"].iterations < 100
    assert ended["simplex"].iterations == 0
    stopped = align(given, "thomson", stop="force", epsilon=0.1)
    assert (stopped.ended_by, stopped.converged) == ("stop", True)
    assert 10 <= stopped.iterations < 100


@pytest.mark.parametrize(
    ("K", "classes", "solver"), [(5, None, "simplex"), (6, None, "riesz"), (3, 6, "riesz"), (3, 5, "simplex")]
)
def test_auto_is_simplex_where_it_has_room_for_all_classes_and_riesz_elsewhere(K, classes, solver):
    assert align(vectors(K, 4), num_classes=classes).solver == solver


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("K", [0, 1])
def test_fewer_than_two_prototypes_keep_their_direction(solver, K):
    result = align(3 * torch.tensor([[0.6, 0.8]])[:K], solver)
    torch.testing.assert_close(result.points, torch.tensor([[0.6, 0.8]])[:K])
    assert (result.energy, result.iterations, result.ended_by, result.converged) == (0, 0, "exact", True)
    assert (result.minimum_distance, result.mean_distance, result.maximum_distance) == (None, None, None)
    assert result.share is None


@pytest.mark.parametrize("solver", EACH)
@pytest.mark.parametrize(("d", "dtype"), [(2, torch.float64), (16, torch.float32)])
def test_coincident_antipodal_and_zero_prototypes(solver, d, dtype):
    base = vectors(2, d, dtype=dtype)
    kinds = {
        "two coincident": base[[0, 0]],
        "nearly coincident": torch.stack([base[0], base[0] * (1 + 1e-7)]),
        "antipodal": torch.stack([base[0], -base[0]]),
        "coincident beside antipodal": torch.stack([base[0], -base[0], base[0]]),
        "zero": torch.stack([base[0], torch.zeros_like(base[0]), base[1]]),
        "all zero": torch.zeros(3, d, dtype=dtype),
        "all coincident": base[:1].expand(3, d),
    }
    for name, given in kinds.items():
        result = align(given, solver)
        check_distinct_unit_rows(result, len(given))
        zero = {"zero": (1,), "all zero": (0, 1, 2)}.get(name, ())
        assert result.directionless == zero, name
        if solver != "thomson":
            assert result.share == pytest.approx(1, abs=1e-3), name


NOT_FINITE = [torch.tensor([[1.0, 0], [0, 1], [1, bad], [1, 1]]) for bad in (math.nan, math.inf)]


@pytest.mark.parametrize(
    ("given", "arguments", "named"),
    [
        (vectors(4, 5), {"solver": "coulomb"}, r"'coulomb'.*auto, thomson, riesz, simplex"),
        (vectors(4, 5), {"stop": "never"}, r"'never'.*none, force, tangential"),
        (vectors(4, 5), {"iterations": 0}, "0 iterations"),
        *[(vectors(4, 5), {"epsilon": value}, f"epsilon is {value}") for value in (0.0, math.nan)],
        *[(vectors(4, 5), {"s": value}, f"s is {value}") for value in (-1.0, math.inf)],
        (vectors(4, 5), {"num_classes": 3}, r"4 prototypes.*3 classes"),
        (vectors(6, 4), {"solver": "simplex"}, r"5 prototypes in 4 dimensions, not for 6.*'riesz'"),
        *[(vectors(2, 1), {"solver": solver}, "at least 2") for solver in EACH],
        *[(given, {}, "Row 2 of the 4") for given in NOT_FINITE],
    ],
)
def test_what_cannot_be_aligned_is_named(given, arguments, named):
    with pytest.raises(ValueError, match=named):
        align(given, **arguments)
