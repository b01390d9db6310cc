"""Points on the unit sphere as float64 arrays (K, d): their directions, distances, Riesz energy and force.

Everything comes from the Gram matrix in blocks of rows, so memory grows with K·d plus one block, never with
K·K·d.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK_ENTRIES = 2**20
# a smaller squared distance is only a rounding error of its Gram matrix
SMALLEST_SQUARED_DISTANCE = 1e-15
COINCIDENT = 1e-6
TIE_DISPLACEMENT = 1e-3


def unit_rows(vectors: Array) -> Array:
    """Each row divided by its norm."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def directions(vectors: Array, rng: np.random.Generator) -> tuple[Array, list[int]]:
    """The rows on the unit sphere, and the indices of zero rows, which get a random direction."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    directionless = np.flatnonzero(largest == 0)
    # divided by their largest value first, because squares of very large or small values overflow or underflow
    scaled = vectors / np.where(largest == 0, 1.0, largest)
    scaled[directionless] = rng.standard_normal((len(directionless), vectors.shape[1]))
    return unit_rows(scaled), [int(row) for row in directionless]


def tangent_jitter(points: Array, size: float, rng: np.random.Generator) -> Array:
    """The unit rows moved along the sphere in random directions, by about `size`."""
    noise = rng.standard_normal(points.shape) * size / np.sqrt(points.shape[1] - 1)
    return unit_rows(points + noise - np.sum(noise * points, axis=1, keepdims=True) * points)


def separated(points: Array, rng: np.random.Generator) -> Array:
    """The unit rows with ties broken: of rows closer than 1e-6 all but the first move by about 1e-3.

    Repeated until no two coincide: many rows on a circle have little room within one displacement.
    """
    while tied := _later_of_coincident_pairs(points):
        points = points.copy()
        points[tied] = tangent_jitter(points[tied], TIE_DISPLACEMENT, rng)
    return points


def _later_of_coincident_pairs(points: Array) -> list[int]:
    later: list[int] = []
    for start, squared in _squared_distance_blocks(points):
        close = squared < COINCIDENT**2
        if close.any():
            rows, columns = np.nonzero(close)
            later.extend(np.unique(rows[columns < rows + start] + start).tolist())
    return later


def _squared_distance_blocks(points: Array) -> Iterator[tuple[int, Array]]:
    """(first row, squared distances of a block of rows to all rows); to itself a row is infinitely far."""
    squares = np.einsum("kd,kd->k", points, points)
    size = max(1, BLOCK_ENTRIES // len(points))
    for start in range(0, len(points), size):
        block = points[start : start + size]
        squared = block @ points.T
        squared *= -2
        squared += squares[start : start + size, None]
        squared += squares
        np.maximum(squared, SMALLEST_SQUARED_DISTANCE, out=squared)
        diagonal = np.arange(len(block))
        squared[diagonal, start + diagonal] = np.inf
        yield start, squared


def log_force(points: Array) -> Array:
    """F_j = Σ_{k≠j} (c_j - c_k) / ‖c_j - c_k‖² (Eq. 11), (K, d), as (Σ_k w_jk) c_j - Σ_k w_jk c_k."""
    force = np.empty_like(points)
    for start, squared in _squared_distance_blocks(points):
        _weighted_differences(points, start, np.reciprocal(squared, out=squared), force)
    return force


def _weighted_differences(points: Array, start: int, weights: Array, out: Array) -> None:
    rows = slice(start, start + len(weights))
    np.multiply(weights.sum(axis=1, keepdims=True), points[rows], out=out[rows])
    out[rows] -= weights @ points


def potential(points: Array, s: float) -> tuple[float, Array]:
    """E_0, or log E_s for s > 0, and minus its gradient, the force (K, d); for K of at least 2.

    E_s = Σ_{j<k} ‖c_j - c_k‖^-s, E_0 = Σ_{j<k} log ‖c_j - c_k‖⁻¹ (Eq. 8 of ProtoNorm). The logarithm has the
    minimisers of E_s, and neither a large s nor a close pair overflows it.
    """
    force = np.empty_like(points)
    sums, scales = np.empty(len(points)), np.zeros(len(points))
    for start, squared in _squared_distance_blocks(points):
        rows = slice(start, start + len(squared))
        energies, scales[rows] = _pair_energies(squared, s)
        sums[rows] = energies.sum(axis=1)
        weights = 1 / squared if s == 0 else s * energies / squared
        _weighted_differences(points, start, weights, force)
    value = _total(sums, scales, s)
    if s > 0:
        force *= np.exp(scales - value)[:, None]
    return value, force


def _pair_energies(squared: Array, s: float) -> tuple[Array, Array]:
    """A block's pair energies and the logarithm of what each of its rows was divided by (0 for s = 0)."""
    if s == 0:
        energies = np.log(squared, out=np.zeros_like(squared), where=np.isfinite(squared))
        energies *= -0.5
        return energies, np.zeros(len(squared))
    nearest = squared.min(axis=1, keepdims=True)
    return np.power(squared / nearest, -s / 2), -s / 2 * np.log(nearest[:, 0])


def _total(sums: Array, scales: Array, s: float) -> float:
    if s == 0:
        return float(sums.sum() / 2)
    # clients load this module for every message and never call this function
    from scipy.special import logsumexp

    return float(logsumexp(scales, b=sums / 2))


def measure(points: Array, s: float) -> tuple[float, float, float, float]:
    """E_0, or log E_s for s > 0, and the least, mean and largest pairwise distance; for K of at least 2."""
    sums, scales = np.empty(len(points)), np.zeros(len(points))
    least, total, largest = np.inf, 0.0, 0.0
    for start, squared in _squared_distance_blocks(points):
        rows = slice(start, start + len(squared))
        energies, scales[rows] = _pair_energies(squared, s)
        sums[rows] = energies.sum(axis=1)
        distances = np.sqrt(squared, out=squared)
        least = min(least, float(distances.min()))
        diagonal = np.arange(len(distances))
        distances[diagonal, start + diagonal] = 0
        total += float(distances.sum())
        largest = max(largest, float(distances.max()))
    return _total(sums, scales, s), least, total / (len(points) * (len(points) - 1)), largest
