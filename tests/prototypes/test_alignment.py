"""The public entry: energy and force as tensors; align on ordinary and degenerate prototypes."""

import math

import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from prototypes import alignment, sphere
from prototypes.alignment import SOLVERS, STOPS, align, riesz_energy, riesz_force

EACH = [name for name in SOLVERS if name != "auto"]


def vectors(K, d, seed=0, dtype=torch.float64):
    return torch.randn(K, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def check_distinct_unit_rows(result, K):
    points = result.points.double()
    assert points.isfinite().all()
    torch.testing.assert_close(points.norm(dim=1), torch.ones(K, dtype=torch.float64), rtol=0, atol=1e-6)
    assert torch.pdist(points).min() > 1e-4


@pytest.mark.parametrize("s", [0.0, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("K", [2, 5])
def test_force_is_minus_the_finite_difference_of_the_energy(s, K):
    points = 1.3 * vectors(K, 4)
    force = riesz_force(points, s)
    step = 1e-5
    for j in range(K):
        for c in range(4):
            ahead, behind = points.clone(), points.clone()
            ahead[j, c] += step
            behind[j, c] -= step
            slope = (riesz_energy(ahead, s) - riesz_energy(behind, s)) / (2 * step)
            assert float(force[j, c]) == pytest.approx(-float(slope), rel=1e-6, abs=1e-7)


def test_energy_of_an_octahedron_by_hand():
    points = torch.cat([torch.eye(3), -torch.eye(3)])
    assert float(riesz_energy(points)) == pytest.approx(-(12 * math.log(2) / 2 + 3 * math.log(2)), rel=1e-6)
    assert float(riesz_energy(points, 1.0)) == pytest.approx(12 / math.sqrt(2) + 1.5, rel=1e-6)
    torch.testing.assert_close(riesz_force(points), 2.5 * points)


def test_energy_and_force_of_one_point_and_of_none():
    for K in (0, 1):
        points = torch.ones(K, 3)
        for s in (0.0, 2.0):
            assert riesz_energy(points, s).item() == 0
            assert torch.equal(riesz_force(points, s), torch.zeros(K, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_energy_and_force_have_the_dtype_of_the_points(dtype):
    points = torch.nn.functional.normalize(vectors(5, 3)).to(dtype)
    assert riesz_energy(points, 1.0).dtype == dtype
    assert riesz_force(points, 1.0).dtype == dtype


@pytest.mark.parametrize("solver", EACH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_points_keep_the_dtype_are_those_of_float64_and_the_argument_is_not_modified(solver, dtype):
    given = vectors(8, 12, dtype=dtype)
    before = given.clone()
    result = align(given, solver)
    assert result.points.dtype == dtype
    assert torch.equal(given, before)
    assert torch.equal(result.points, align(given.double(), solver).points.to(dtype))


@pytest.mark.parametrize("solver", EACH)
def test_a_float64_argument_does_not_share_memory_with_the_points(solver):
    given = torch.nn.functional.normalize(vectors(1, 3))
    result = align(given, solver)
    result.points.zero_()
    assert given.any()


@pytest.mark.parametrize("solver", EACH)
def test_the_same_call_gives_the_same_bits(solver):
    given = vectors(10, 16)
    given[3] = given[4]
    given[6] = 0
    one, other = align(given, solver, seed=7), align(given, solver, seed=7)
    assert torch.equal(one.points, other.points)
    assert (one.energy, one.iterations) == (other.energy, other.iterations)
    assert not torch.equal(one.points, align(given, solver, seed=8).points)


def test_the_length_of_a_prototype_does_not_matter():
    given = vectors(6, 9)
    scales = torch.tensor([1e-3, 1.0, 5.0, 1e4, 0.3, 77.0], dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(align(given).points, align(scales * given).points)


@pytest.mark.parametrize("solver", EACH)
@pytest.mark.parametrize("s", [0.0, 1.0])
def test_what_is_reported_is_what_the_points_are(solver, s):
    K = 7
    result = align(vectors(K, 9), solver, s=s)
    distances = torch.pdist(result.points)
    energy = -distances.log().sum() if s == 0 else distances.pow(-s).sum()
    assert result.energy == pytest.approx(float(energy), rel=1e-10)
    assert result.energy == pytest.approx(float(riesz_energy(result.points, s)), rel=1e-12)
    assert result.minimum_distance == pytest.approx(float(distances.min()))
    assert result.mean_distance == pytest.approx(float(distances.mean()))
    assert result.maximum_distance == pytest.approx(float(distances.max()))
    assert result.share == pytest.approx(float(distances.min()) / math.sqrt(2 * K / (K - 1)))
    assert result.solver == solver
    assert result.directionless == ()


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


@pytest.mark.parametrize(("K", "d"), [(3, 2), (10, 64), (65, 64)])
def test_simplex_reaches_the_closed_form(K, d):
    result = align(vectors(K, d), "simplex")
    assert result.share == pytest.approx(1, abs=1e-12)
    assert result.maximum_distance == pytest.approx(math.sqrt(2 * K / (K - 1)), rel=1e-12)


def test_auto_is_simplex_where_it_has_room_and_riesz_elsewhere():
    assert align(vectors(5, 4)).solver == "simplex"
    assert align(vectors(6, 4)).solver == "riesz"


def test_auto_decides_by_the_number_of_classes_not_by_the_rows_of_the_round():
    assert align(vectors(3, 4), num_classes=6).solver == "riesz"
    assert align(vectors(3, 4), num_classes=5).solver == "simplex"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("K", [0, 1])
def test_fewer_than_two_prototypes_keep_their_direction(solver, K):
    result = align(3 * torch.tensor([[0.6, 0.8]])[:K], solver)
    torch.testing.assert_close(result.points, torch.tensor([[0.6, 0.8]])[:K])
    assert (result.energy, result.iterations, result.ended_by, result.converged) == (0, 0, "exact", True)
    assert (result.minimum_distance, result.mean_distance, result.maximum_distance) == (None, None, None)
    assert result.share is None


@pytest.mark.parametrize("solver", ["riesz", "simplex"])
@pytest.mark.parametrize("d", [2, 10])
def test_two_prototypes_become_antipodal(solver, d):
    given = vectors(2, d)
    result = align(given, solver)
    assert result.share == pytest.approx(1, abs=1e-6)
    between = torch.nn.functional.normalize(given)
    between = torch.nn.functional.normalize(between[0] - between[1], dim=0)
    if solver == "simplex":
        torch.testing.assert_close(result.points, torch.stack([between, -between]))


@pytest.mark.parametrize("solver", EACH)
@pytest.mark.parametrize("d", [2, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
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


@pytest.mark.parametrize("solver", ["thomson", "riesz"])
@pytest.mark.parametrize("d", [2, 3])
def test_many_coincident_prototypes_where_there_is_no_simplex(solver, d):
    check_distinct_unit_rows(align(torch.ones(40, d), solver), 40)


def test_blas_threads_are_at_most_two_never_raised_and_put_back(monkeypatch):
    seen = []
    measure = sphere.measure

    def watched(points, s):
        seen.append(threads())
        return measure(points, s)

    def threads():
        return max(each["num_threads"] for each in ThreadpoolController().select(user_api="blas").info())

    monkeypatch.setattr(alignment.sphere, "measure", watched)
    for allowed, expected in ((1, 1), (2, 2), (3, 2)):
        with threadpool_limits(limits=allowed, user_api="blas"):
            align(vectors(4, 5))
            assert threads() == allowed
        assert seen.pop() == expected


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"solver": "coulomb"}, r"'coulomb'.*auto, thomson, riesz, simplex"),
        ({"stop": "never"}, r"'never'.*none, force, tangential"),
        ({"iterations": 0}, r"0 iterations.*at least 1"),
        ({"epsilon": 0.0}, r"epsilon is 0\.0.*above 0"),
        ({"epsilon": math.nan}, r"epsilon is nan"),
        ({"s": -1.0}, r"s is -1\.0.*at least 0"),
        ({"s": math.inf}, r"s is inf"),
        ({"num_classes": 3}, r"4 prototypes.*3 classes"),
    ],
)
def test_settings_out_of_range_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        align(vectors(4, 5), **arguments)


def test_too_many_prototypes_for_a_simplex_names_riesz():
    with pytest.raises(ValueError, match=r"5 prototypes in 4 dimensions, not for 6.*'riesz'"):
        align(vectors(6, 4), "simplex")


@pytest.mark.parametrize("solver", EACH)
def test_one_dimension_has_no_room_to_turn(solver):
    with pytest.raises(ValueError, match="at least 2"):
        align(vectors(2, 1), solver)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_named(bad):
    given = vectors(4, 5)
    given[2, 1] = bad
    with pytest.raises(ValueError, match="Row 2 of the 4"):
        align(given)


@pytest.mark.parametrize("given", [torch.ones(3), torch.ones(3, 2, dtype=torch.int64)])
def test_what_is_not_rows_of_floats_is_refused(given):
    for function in (align, riesz_energy, riesz_force):
        with pytest.raises(ValueError, match=r"floating-point rows \(K, d\)"):
            function(given)


def test_the_negative_exponent_of_an_energy_is_named():
    for function in (riesz_energy, riesz_force):
        with pytest.raises(ValueError, match=r"s is -0\.5"):
            function(vectors(3, 3), -0.5)


def test_every_stop_rule_runs_through_align():
    for stop in STOPS:
        assert align(vectors(5, 6), "thomson", stop=stop).iterations <= 100
