"""Separation of prototypes: pairwise distances and angles, and the largest that are possible for their number."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK_ENTRIES = 2**20


@dataclass(frozen=True)
class Separation:
    """Of K prototypes, two or more.

    distance_min, distance_mean: Euclidean, over pairs. distance_bound: √(2K/(K-1)) times the root mean square of the
    norms, which the smallest distance of K vectors of such norms never exceeds and only a simplex around the origin
    (K <= d+1) reaches. angle_min, angle_mean: in degrees, over pairs of
    rows that are not zero, None with fewer than two; angle_bound: arccos(-1/(K-1)) of them.
    """

    classes: int
    distance_min: float
    distance_mean: float
    distance_bound: float
    angle_min: float | None
    angle_mean: float | None
    angle_bound: float | None


def separation(vectors: Tensor) -> Separation | None:
    """Measure the rows of (K, d), floating and finite, in float64 on the CPU; None with fewer than two.

    The same rows give the same bits whatever the number of threads.
    """
    rows = vectors.detach().to("cpu", torch.float64).numpy()
    K = len(rows)
    if K < 2:
        return None
    least, mean = _distances(rows)
    norms = np.sqrt(np.einsum("kd,kd->k", rows, rows))
    bound = np.sqrt(2 * K / (K - 1)) * np.sqrt(np.mean(norms**2))
    return Separation(K, least, mean, float(bound), *_angles(rows))


def _angles(rows: NDArray[np.float64]) -> tuple[float, float, float] | tuple[None, None, None]:
    # divided by their largest value first, because the square of a very short row underflows
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows[largest[:, 0] > 0] / largest[largest[:, 0] > 0]
    if len(scaled) < 2:
        return None, None, None
    units = scaled / np.sqrt(np.einsum("kd,kd->k", scaled, scaled))[:, None]
    least, mean = _distances(units, as_angles=True)
    return least, mean, float(np.degrees(np.arccos(-1 / (len(units) - 1))))


def _distances(rows: NDArray[np.float64], as_angles: bool = False) -> tuple[float, float]:
    """The minimum and the mean over pairs; for unit rows also as angles, in degrees. Computed from differences, not
    from a Gram matrix, which would lose precision for close rows, and whose sums depend on the number of threads."""
    # clients load this module for every message and never call this function
    from scipy.spatial.distance import cdist

    K, total, least = len(rows), 0.0, np.inf
    size = max(1, BLOCK_ENTRIES // K)
    for start in range(0, K, size):
        values = cdist(rows[start : start + size], rows)
        if as_angles:
            values = np.degrees(2 * np.arcsin(np.minimum(values / 2, 1.0)))
        diagonal = np.arange(len(values))
        values[diagonal, start + diagonal] = 0
        total += float(values.sum())
        values[diagonal, start + diagonal] = np.inf
        least = min(least, float(values.min()))
    return least, total / (K * (K - 1))
