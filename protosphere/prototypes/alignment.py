"""Prototype alignment (ProtoNorm, Algorithm 1): spread the prototypes' directions over the unit sphere.

Computed in float64 on the CPU whatever comes in: float32 Gram matrices are wrong by percents at the
distances of a first round, and unlimited BLAS threads are slower than two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from protosphere.prototypes import solvers, sphere
from protosphere.prototypes.sphere import Array

SOLVERS = ("auto", "thomson", "riesz", "simplex")
STOPS = ("none", "force", "tangential")
MOST_THREADS = 2


@dataclass(frozen=True, eq=False)
class Alignment:
    """Aligned prototypes and how they were found.

    points: (K, d) unit rows, dtype and device of the input. solver: the one that ran. iterations: its
    iterations (0 for the closed form). energy: E_s of the points, float64 before the cast. ended_by: `exact`
    (closed form, or fewer than two rows), `tolerance` (riesz), `stop` (a stop rule of thomson) or `limit`;
    converged: not by `limit`. minimum, mean and maximum_distance: over pairs; share: the minimum over the
    largest possible, √(2K/(K-1)), which only K <= d+1 can reach; None with fewer than two rows.
    directionless: the indices of zero rows, which got a seeded random direction. trace: of thomson, where it was
    asked for, the minimum, mean and maximum distance before the first iteration and after each.
    """

    points: Tensor
    iterations: int
    energy: float
    converged: bool
    solver: str
    ended_by: str
    minimum_distance: float | None
    mean_distance: float | None
    maximum_distance: float | None
    share: float | None
    directionless: tuple[int, ...]
    trace: tuple[tuple[float, float, float], ...] = ()


def align(
    vectors: Tensor,
    solver: str = "auto",
    s: float = 0.0,
    iterations: int = 100,
    stop: str = "none",
    epsilon: float = 1e-4,
    seed: int = 0,
    num_classes: int | None = None,
    traced: bool = False,
) -> Alignment:
    """Spread the directions of prototypes (K, d) over the unit sphere.

    solver: `thomson` (Algorithm 1: at most `iterations`, by default all of them; `stop` and `epsilon` end it
    earlier), `riesz` (E_s to convergence), `simplex` (closed form, K <= d+1), or `auto`: simplex when
    `num_classes` (None: the rows given) is at most d+1, else riesz; with `num_classes` the choice does not
    change from round to round.

    Coincident rows (closer than 1e-6) are told apart by a displacement of 1e-3, zero rows get a random
    direction; both are drawn from `seed`, so the same call gives the same bits. With fewer than two rows
    nothing is to be spread. traced: whether thomson measures distances at each iteration.

    Raises ValueError for settings out of range, rows that are not finite, `simplex` with K > d+1, and two rows
    or more in one dimension.
    """
    _check_settings(solver, iterations, stop, epsilon)
    array = _validate(vectors, s)
    K, d = array.shape
    if num_classes is not None and num_classes < K:
        raise ValueError(f"There are {K} prototypes to align but only {num_classes} classes; one of the two is wrong.")
    if solver == "auto":
        solver = "simplex" if (num_classes or K) <= d + 1 else "riesz"
    if solver == "simplex" and d + 1 < K:
        raise ValueError(
            f"The alignment 'simplex' has room for {d + 1} prototypes in {d} dimensions, not for {K}; "
            "choose 'riesz', or a feature-dim of at least the number of classes less one."
        )
    if d < 2 <= K:
        raise ValueError(f"Prototypes of {d} dimension cannot be aligned; the feature-dim must be at least 2.")

    trace: list[tuple[float, float, float]] = []

    def note(moved: Array) -> None:
        trace.append(sphere.measure(moved, s)[1:])

    rng = np.random.default_rng(seed)
    points, directionless = sphere.directions(array, rng)
    solution = solvers.Solution(points, 0, "exact")
    value, least, mean, largest, share = _nothing(s), None, None, None, None
    if K > 1:
        with _few_threads():
            points = sphere.separated(points, rng)
            if solver == "thomson":
                if traced:
                    note(points)
                solution = solvers.thomson(points, iterations, stop, epsilon, note if traced else None)
            elif solver == "riesz":
                solution = solvers.riesz(points, s, rng)
            else:
                solution = solvers.simplex(points)
            value, least, mean, largest = sphere.measure(solution.points, s)
        share = least / math.sqrt(2 * K / (K - 1))
    return Alignment(
        points=torch.from_numpy(solution.points).to(dtype=vectors.dtype, device=vectors.device),
        iterations=solution.iterations,
        energy=_energy(value, s),
        converged=solution.ended_by != "limit",
        solver=solver,
        ended_by=solution.ended_by,
        minimum_distance=least,
        mean_distance=mean,
        maximum_distance=largest,
        share=share,
        directionless=tuple(directionless),
        trace=tuple(trace),
    )


def _check_settings(solver: str, iterations: int, stop: str, epsilon: float) -> None:
    if solver not in SOLVERS:
        raise ValueError(f"The alignment {solver!r} is unknown; choose one of {', '.join(SOLVERS)}.")
    if stop not in STOPS:
        raise ValueError(f"The alignment's stop rule {stop!r} is unknown; choose one of {', '.join(STOPS)}.")
    if iterations < 1:
        raise ValueError(f"The alignment got {iterations} iterations; it needs at least 1.")
    if not epsilon > 0:
        raise ValueError(f"The alignment's epsilon is {epsilon}; it must be above 0.")


def _validate(points: Tensor, s: float) -> Array:
    """The points as float64 on the CPU, possibly the very memory of the tensor: to be read only."""
    if points.dim() != 2 or not points.is_floating_point():
        raise ValueError(
            f"Points to align have shape {tuple(points.shape)} and dtype {points.dtype}; "
            "they must be floating-point rows (K, d)."
        )
    if not 0 <= s < math.inf:
        raise ValueError(f"The energy's exponent s is {s}; it must be a number of at least 0.")
    array: Array = points.detach().to(device="cpu", dtype=torch.float64).numpy()
    broken = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(broken):
        raise ValueError(
            f"Row {broken[0]} of the {len(array)} points to align is not finite; "
            "a client has probably diverged, and its upload must be dropped before."
        )
    return array


def _nothing(s: float) -> float:
    """What sphere.measure's first value would be without any pair."""
    return 0.0 if s == 0 else -math.inf


def _energy(value: float, s: float) -> float:
    """E_s from E_0 or log E_s; infinite where E_s is above every float64."""
    with np.errstate(over="ignore"):
        return value if s == 0 else float(np.exp(value))


@contextmanager
def _few_threads() -> Iterator[None]:
    """At most two BLAS threads, and never more than the caller has allowed itself."""
    libraries = ThreadpoolController().select(user_api="blas")
    allowed = max((library["num_threads"] for library in libraries.info()), default=MOST_THREADS)
    with libraries.limit(limits=min(MOST_THREADS, allowed)):
        yield
