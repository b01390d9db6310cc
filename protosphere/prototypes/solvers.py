"""The solvers of prototype alignment: unit rows (K, d), float64, K of at least 2, spread over the sphere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from protosphere.prototypes.sphere import Array, log_force, potential, tangent_jitter, unit_rows

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

# Algorithm 1 of ProtoNorm
MOMENTUM = 0.9
STEP = 0.1
STEP_DECAY = 0.95
STEP_DECAY_EVERY = 10
CALM_ITERATIONS = 10
FORCE_ITERATIONS = 10  # iterations before the rule `force` applies

RIESZ_JITTER = 1e-4
RIESZ_TOLERANCE = 1e-4
RIESZ_EVALUATIONS = 500
RIESZ_SETTLED_ITERATIONS = 5


class Solution(NamedTuple):
    """points: (K, d) unit rows; iterations: how many the solver took; ended_by: what ended it."""

    points: Array
    iterations: int
    ended_by: str


def thomson(
    points: Array, iterations: int, stop: str, epsilon: float, watch: Callable[[Array], None] | None = None
) -> Solution:
    """Algorithm 1 of ProtoNorm: momentum along the force of the logarithmic energy (Eq. 11-14).

    stop: `none`; `force`, the mean force norm, rounded to multiples of epsilon, the same ten times in a row, counted
    from the eleventh iteration on, as the authors' release has it; `tangential`, ten mean tangential force norms in a
    row below epsilon times the mean full norm. Ended by `stop` or `limit`. It approaches the optimum without reaching
    it: the force's radial part keeps (K-1)/2 everywhere, and the step shrinks. watch: is given the points after each
    iteration.
    """
    velocity = np.zeros_like(points)
    previous = None
    calm = 0
    for iteration in range(iterations):
        force = log_force(points)
        if stop != "none":
            strength = float(np.linalg.norm(force, axis=1).mean())
            if stop == "force":
                rounded = round(strength / epsilon) if iteration >= FORCE_ITERATIONS else None
                still = rounded is not None and rounded == previous
                previous = rounded
            else:
                still = float(np.linalg.norm(_tangential(force, points), axis=1).mean()) < epsilon * strength
            calm = calm + 1 if still else 0
        velocity *= MOMENTUM
        velocity += STEP * STEP_DECAY ** (iteration // STEP_DECAY_EVERY) * force
        points = unit_rows(points + velocity)
        if watch is not None:
            watch(points)
        if calm == CALM_ITERATIONS:
            return Solution(points, iteration + 1, "stop")
    return Solution(points, iterations, "limit")


def riesz(points: Array, s: float, rng: np.random.Generator) -> Solution:
    """A minimum of E_s by L-BFGS-B on free vectors y with c = y / ‖y‖; local, where there are several.

    A tangent jitter comes first: a start whose rows span too few dimensions is a saddle. For the same reason
    the tolerance must hold for five iterations in a row: a saddle is left again. Ended by `tolerance` when
    the largest tangential force is below 1e-4 of the mean full force, by `limit` otherwise (500 evaluations,
    or no descent left in float64).
    """
    # clients load this module for every message and never call this function
    from scipy.optimize import minimize

    shape = points.shape
    unrest = np.inf
    settled = 0

    def objective(flat: Array) -> tuple[float, Array]:
        nonlocal unrest
        free = flat.reshape(shape)
        norms = np.linalg.norm(free, axis=1, keepdims=True)
        current = free / norms
        value, force = potential(current, s)
        tangential = _tangential(force, current)
        unrest = np.linalg.norm(tangential, axis=1).max() / np.linalg.norm(force, axis=1).mean()
        return value, (-tangential / norms).ravel()

    def stop_when_settled(intermediate_result: OptimizeResult) -> None:
        # an iteration ends with the evaluation of the point that it accepts
        nonlocal settled
        settled = settled + 1 if unrest < RIESZ_TOLERANCE else 0
        if settled == RIESZ_SETTLED_ITERATIONS:
            raise StopIteration

    start = tangent_jitter(points, RIESZ_JITTER, rng)
    options = {"maxfun": RIESZ_EVALUATIONS, "maxiter": RIESZ_EVALUATIONS, "ftol": 0.0, "gtol": 0.0}
    result = minimize(
        objective, start.ravel(), jac=True, method="L-BFGS-B", callback=stop_when_settled, options=options
    )
    ended_by = "tolerance" if unrest < RIESZ_TOLERANCE else "limit"
    return Solution(unit_rows(result.x.reshape(shape)), int(result.nit), ended_by)


def simplex(points: Array) -> Solution:
    """The regular simplex nearest to the given directions (ours; K <= d+1): the exact minimum of every E_s.

    With B the Helmert basis (K, K-1) of the space orthogonal to 1, every regular simplex on the sphere is
    √(K/(K-1)) B R for some R (K-1, d) with orthonormal rows. The one nearest to C is orthogonal Procrustes: R
    is the polar factor of Bᵀ C. Ended by `exact`.
    """
    K = len(points)
    # scipy.linalg.helmert gives the same numbers, but loading scipy.linalg takes half a second of every run
    ones, columns = np.arange(1, K)[:, None], np.arange(K)
    helmert = np.where(columns < ones, 1.0, np.where(columns == ones, -ones, 0.0)) / np.sqrt(ones * (ones + 1))
    basis = helmert.T
    left_vectors, _, right_vectors = np.linalg.svd(basis.T @ points, full_matrices=False)
    return Solution(np.sqrt(K / (K - 1)) * basis @ (left_vectors @ right_vectors), 0, "exact")


def _tangential(force: Array, points: Array) -> Array:
    return np.asarray(force - np.sum(force * points, axis=1, keepdims=True) * points)
