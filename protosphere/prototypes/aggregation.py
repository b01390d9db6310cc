"""Class-wise aggregation of the clients' prototypes: means, and centres that few bad clients can move."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet, refuse_different_kinds

AGGREGATIONS = ("mean", "weighted", "median", "trimmed-mean", "geometric-median")

# The geometric median is found when the unit vectors from it to n rows sum to less than this times n.
WEISZFELD_TOLERANCE = 1e-9
WEISZFELD_STEPS = 1000
# Rows this close, as a share of the rows' mean distance from their mean, are one.
SAME_ROW = 1e-12


def aggregate(sets: Sequence[PrototypeSet], how: str = "mean", trim: float = 0.1) -> PrototypeSet:
    """One prototype for each class that any of the sets holds, from the sets that hold it.

    how: `mean` (Eq. 7 of ProtoNorm), `weighted` by the counts, `median` of each coordinate, `trimmed-mean` of
    each coordinate without the ⌊trim·n⌋ smallest and largest of n values, of three values or more without one at
    each end at least (trim in [0, 0.5), 0 for none), or `geometric-median`, the point with the least sum of
    Euclidean distances.

    Computed in float64; the result has the sets' dtype and device, and no counts. The order of the
    sets matters no more than rounding. Raises ValueError for no sets, sets that do not fit together,
    an unknown `how`, a `trim` out of range, and `weighted` without counts.
    """
    if how not in AGGREGATIONS:
        raise ValueError(f"The aggregation {how!r} is unknown; choose one of {', '.join(AGGREGATIONS)}.")
    if not 0 <= trim < 0.5:
        raise ValueError(f"The trim of a trimmed mean is {trim}; it must be at least 0 and below 0.5.")
    if not sets:
        raise ValueError("There are no prototype sets to aggregate; at least one client must have uploaded its own.")
    refuse_different_kinds(sets, "aggregated")

    rows = torch.cat([prototypes.vectors for prototypes in sets]).double()
    labels, owner = torch.cat([prototypes.labels for prototypes in sets]).unique(return_inverse=True)
    if how in ("mean", "weighted"):
        weights = _counts(sets).double() if how == "weighted" else rows.new_ones(len(rows))
        vectors = _weighted_means(rows, owner, weights, len(labels))
    else:
        vectors = rows.new_empty(len(labels), rows.shape[1])
        for index in range(len(labels)):
            group = rows[owner == index]
            if how == "median":
                vectors[index] = trimmed_mean(group, (len(group) - 1) // 2)
            elif how == "trimmed-mean":
                vectors[index] = trimmed_mean(group, values_cut(len(group), trim))
            else:
                vectors[index] = geometric_median(group)
    return PrototypeSet(labels, vectors.to(sets[0].vectors.dtype))


def values_cut(rows: int, trim: float) -> int:
    """How many of a class's rows go at each end: a share of few rows is none, and one liar among three would stay."""
    return max(int(trim * rows), 1) if trim and rows > 2 else int(trim * rows)


def _counts(sets: Sequence[PrototypeSet]) -> Tensor:
    counts = [prototypes.counts for prototypes in sets if prototypes.counts is not None]
    if len(counts) < len(sets):
        raise ValueError(
            f"The aggregation 'weighted' needs class counts, but {len(sets) - len(counts)} of {len(sets)} "
            "prototype sets have none; let the clients upload them or choose 'mean'."
        )
    return torch.cat(counts)


def _weighted_means(rows: Tensor, owner: Tensor, weights: Tensor, groups: int) -> Tensor:
    """rows (n, d), owner (n,) in 0..groups-1, weights (n,) > 0 -> (groups, d)."""
    sums = rows.new_zeros(groups, rows.shape[1]).index_add_(0, owner, rows * weights.unsqueeze(1))
    totals = rows.new_zeros(groups).index_add_(0, owner, weights)
    return sums / totals.unsqueeze(1)


def trimmed_mean(rows: Tensor, cut: int) -> Tensor:
    """The mean of each coordinate of rows (n, d) without its `cut` smallest and largest values -> (d,)."""
    return rows.sort(dim=0).values[cut : len(rows) - cut].mean(dim=0)


def geometric_median(rows: Tensor) -> Tensor:
    """Weiszfeld's iteration on rows (n, d) -> (d,), from their mean.

    Its weights 1/distance do not exist at a row. So the row nearest to the current point is tested for
    optimality itself: row x_k, m-fold, is the median exactly when the unit vectors from it to the other rows
    sum to a vector no longer than m. A point that meets a row which is not the median leaves it by Vardi and
    Zhang's step (PNAS 97, 2000), which weighs the plain step with 1 - m / length.
    """
    point = rows.mean(dim=0)
    same = SAME_ROW * torch.linalg.vector_norm(rows - point, dim=1).mean()
    slack = WEISZFELD_TOLERANCE * len(rows)
    for _ in range(WEISZFELD_STEPS):
        pull, weight, met = _pull(rows, point, same)
        length = torch.linalg.vector_norm(pull)
        if length <= slack:
            break
        nearest = rows[torch.linalg.vector_norm(rows - point, dim=1).argmin()]
        pull_there, _, met_there = _pull(rows, nearest, same)
        if torch.linalg.vector_norm(pull_there) <= met_there + slack:
            return nearest
        point = point + pull / weight * (1 - met / length).clamp(min=0)
    return point


def _pull(rows: Tensor, point: Tensor, same: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of unit vectors (d,) from point to rows, the sum of 1/distance, and how many rows it meets."""
    offsets = rows - point
    distances = torch.linalg.vector_norm(offsets, dim=1)
    apart = distances > same
    weights = torch.where(apart, 1 / distances.clamp(min=torch.finfo(rows.dtype).tiny), 0.0)
    return weights @ offsets, weights.sum(), (~apart).sum()
