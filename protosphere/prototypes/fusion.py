"""GFPL's prototype fusion (Algorithm 1): components of one class that are close to each other become one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protosphere.prototypes.mixture_set import MixtureSet

# Elements (pairs x dimensions) per block: as many as fit into a core's cache.
BLOCK_ENTRIES = 2**17
# Rows per block of distances to all later rows of their class.
ROWS_AT_ONCE = 32


def bhattacharyya(means: Tensor, variances: Tensor, other_means: Tensor, other_variances: Tensor) -> Tensor:
    """The Bhattacharyya distances of diagonal Gaussians (Eq. 8 of GFPL), (a, b).

    means, variances: (a, d); other_means, other_variances: (b, d); of one dtype, in which distances are computed;
    variances above 0, in float64 between 1e-70 and 1e70. Summed over the dimensions, at least 0. Memory grows with
    the result and one block.
    """
    distances = means.new_empty(len(means), len(other_means))
    logarithms, other_logarithms = variances.log().sum(dim=1, keepdim=True), other_variances.log().sum(dim=1)
    size = max(1, BLOCK_ENTRIES // max(1, other_means.numel()))
    for start in range(0, len(means), size):
        rows = slice(start, start + size)
        differences = means[rows].unsqueeze(1) - other_means
        twice_pooled = variances[rows].unsqueeze(1) + other_variances
        # ½ ln det((Σ + Σ')/2) - ¼ (ln det Σ + ln det Σ')
        shapes = 0.5 * (_log_sum(twice_pooled) - means.shape[1] * math.log(2))
        shapes -= 0.25 * (logarithms[rows] + other_logarithms)
        torch.add(shapes, differences.square_().div_(twice_pooled).sum(dim=2), alpha=0.25, out=distances[rows])
    # rounding may make the distance of two equal components negative
    return distances.clamp_(min=0)


def _log_sum(values: Tensor) -> Tensor:
    """Σ ln over the last dimension: logarithms of products of four, as they cost more than all else together."""
    for _ in range(2):
        half = values.shape[-1] // 2
        if values.shape[-1] % 2 or values.dtype != torch.float64:
            break
        values = values[..., :half] * values[..., half:]
    return values.log().sum(dim=-1)


def fuse(mixtures: Mapping[int, MixtureSet], threshold: float, per_dimension: bool = True) -> MixtureSet:
    """Algorithm 1 of GFPL: the global mixtures of all classes that any client holds.

    mixtures: by the client's partition, whose order alone breaks ties; that of the mapping does not matter.
    threshold: S_C, at least 0. Components of a class become one where the Bhattacharyya distance of every two of
    them (complete linkage) is below it: as the sum over d, or divided by d if `per_dimension`. 0 fuses nothing,
    infinity leaves one component a class.

    Seeds and candidates are taken heaviest first, then by client and row. A fused component has the mean and the
    variances of its pooled members (lines 14-16); weights are divided by their class's sum. Computed in float64 on
    the CPU. A component weighs π. The result has the dtype and device of the first client's, and no counts.
    Raises ValueError for no mixtures, sets that do not fit together, and a threshold that is negative or NaN.
    """
    if not threshold >= 0:
        raise ValueError(f"The fusion threshold is {threshold}; it must be at least 0.")
    pool = _pool(mixtures)
    limit = threshold * pool.means.shape[1] if per_dimension else threshold
    classes, sizes = pool.labels[pool.order].unique_consecutive(return_counts=True)
    first = mixtures[min(mixtures)]
    if not len(classes):
        return first.without_counts()
    parts = []
    for rows in pool.order.split(sizes.tolist()):
        fused = _fuse_class(pool.means[rows].double(), pool.variances[rows].double(), pool.weights[rows], limit)
        parts.append([part.to(first.means.dtype) for part in fused])
    labels = classes.repeat_interleave(torch.tensor([len(part[0]) for part in parts]))
    means, variances, weights = (torch.cat(columns) for columns in zip(*parts, strict=True))
    # a component's weight must not round to 0 in the result's dtype
    tiny = torch.finfo(means.dtype).tiny
    return MixtureSet(labels, means, variances.clamp(min=tiny), weights.clamp(min=tiny)).to(first.means.device)


@dataclass(frozen=True)
class _Pool:
    """The components of all clients, r rows on the CPU, client by client.

    Means and variances keep the clients' dtype, because they take most of the memory.
    """

    labels: Tensor  # (r,)
    means: Tensor  # (r, d)
    variances: Tensor  # (r, d)
    weights: Tensor  # (r,) float64
    order: Tensor  # (r,): the rows by class, in it heaviest first, then by client and row


def _pool(mixtures: Mapping[int, MixtureSet]) -> _Pool:
    if not mixtures:
        raise ValueError("There are no mixtures to fuse; at least one client must have uploaded its own.")
    kinds = sorted({(mixture.dim, str(mixture.means.dtype)) for mixture in mixtures.values()})
    if len(kinds) > 1:
        raise ValueError(
            f"Mixtures of different kinds (dimension, dtype) cannot be fused: {kinds}; "
            "all clients must use the same feature-dim and number format."
        )
    sets = [mixtures[partition].to(device="cpu") for partition in sorted(mixtures)]
    weights = torch.cat([mixture.weights for mixture in sets]).double()
    labels = torch.cat([mixture.labels for mixture in sets])
    # stable sorts: what they do not tell apart stays in the order of client and row
    order = weights.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]
    means, variances = (
        torch.cat([mixture.means for mixture in sets]),
        torch.cat([mixture.variances for mixture in sets]),
    )
    return _Pool(labels, means, variances, weights, order)


def _fuse_class(means: Tensor, variances: Tensor, weights: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    """One class: components (m, d), (m, d), (m,) in their order -> means, variances, weights of the c fused ones."""
    clusters, num_clusters = _complete_linkage(_find_near(means, variances, limit))
    totals = weights.new_zeros(num_clusters).index_add_(0, clusters, weights)
    shares = (weights / totals[clusters]).unsqueeze(1)

    def pooled(values: Tensor) -> Tensor:
        return values.new_zeros(num_clusters, values.shape[1]).index_add_(0, clusters, shares * values)

    centres = pooled(means)
    spreads = pooled(variances + (means - centres[clusters]).square())
    return centres, spreads, totals / totals.sum()


def _find_near(means: Tensor, variances: Tensor, limit: float) -> NDArray[np.bool_]:
    """Whether the distance of row i to row j is below the limit, (m, m); only j > i is filled in."""
    near = np.zeros((len(means), len(means)), dtype=np.bool_)
    for start in range(0, len(means), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        distances = bhattacharyya(means[rows], variances[rows], means[start:], variances[start:])
        # the block begins on the diagonal
        near[rows, start:] = np.triu((distances < limit).numpy(), 1)
    return near


def _complete_linkage(near: NDArray[np.bool_]) -> tuple[Tensor, int]:
    """The cluster of each row (m,) int64, numbered in the order of their seeds, and how many there are.

    Lines 3-12 of Algorithm 1 with one candidate at a time, each near every member: line 6 would add a whole set without
    checking its members against each other. Seeds and candidates are taken in row order, so all rows before them are
    assigned, and only the part of near (m, m) above its diagonal is read.
    """
    clusters = np.empty(len(near), dtype=np.int64)
    free = np.ones(len(near), dtype=np.bool_)
    num_clusters = 0
    for seed in range(len(near)):
        if not free[seed]:
            continue
        clusters[seed] = num_clusters
        candidates = free & near[seed]
        while candidates.any():
            joining = int(candidates.argmax())
            clusters[joining] = num_clusters
            free[joining] = False
            candidates &= near[joining]
        num_clusters += 1
    return torch.from_numpy(clusters), num_clusters
