"""Aggregation of uploads (prototypes, weights and class statistics): means, and robust centres that few clients cannot
move.

Medians and trimmed means of each coordinate (Yin et al., ICML 2018), the geometric median (Pillutla et al., IEEE TSP
2022), and means of points clipped to a ball around it (centred clipping; Karimireddy et al., ICML 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet, refuse_different_kinds
from protosphere.prototypes.weights import STATISTICS, Weights

ClassAggregation = Literal["mean", "clipped-mean", "geometric-median"]
RADIUS = 3.0  # radius of the ball for clipping, in median distances from the geometric median
FEW = 3  # with fewer holders of a class, an outlier cannot be identified
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

    Computed in float64; the result has the sets' dtype and device, and no counts. The order of the sets has no effect
    beyond rounding. Raises ValueError for no sets, sets that do not fit together, an unknown `how`, a `trim` out of
    range, and `weighted` without counts.
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
    """The number of a class's rows removed at each end. With three or more rows it is at least one, unless `trim` is 0,
    so that a single false upload among three does not stay."""
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


def class_centres(labels: Tensor, vectors: Tensor, weights: Tensor, num_classes: int, how: ClassAggregation) -> Tensor:
    """The centre of each class's means over the clients that hold it: (K, d) float64, 0 for a class that none holds.

    Args:
        labels: (m,), the class of each mean. vectors: (m, d). weights: (m,), above 0.
        how: "mean", weighted; "clipped-mean", the plain mean of `clipped` points; "geometric-median". With the two
            robust methods, each holder has one vote. A class with fewer than FEW holders always gets the weighted mean.
    """
    vectors = vectors.double()
    sums = torch.zeros(num_classes, vectors.shape[1], dtype=torch.float64)
    sums.index_add_(0, labels, weights.unsqueeze(1) * vectors)
    totals = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, labels, weights)
    centres = sums / totals.clamp(min=1e-300).unsqueeze(1)
    if how == "mean":
        return centres

    for label in labels.unique().tolist():
        points = vectors[labels == label]
        if len(points) >= FEW:
            centres[label] = clipped(points).mean(dim=0) if how == "clipped-mean" else geometric_median(points)
    return centres


def clipped(points: Tensor) -> Tensor:
    """Points (n, d) float64, those outside a ball around their geometric median moved to its surface. Its radius is
    RADIUS times the median distance."""
    centre = geometric_median(points)
    offsets = points - centre
    distances = torch.linalg.vector_norm(offsets, dim=1, keepdim=True)
    radius = RADIUS * distances.median()
    return centre + offsets * (radius / distances.clamp(min=1e-300)).clamp(max=1)


def aggregate_weights(sets: Sequence[Weights], how: str, trim: float = 0.1) -> Tensor:
    """Weights of one layout as one: all values in the order of `flat`, float64.

    how: `median`, `trimmed-mean` (of each value, as in `aggregate`) or `geometric-median`, a weighted mean of the sets,
    whose weights follow from the products of their differences.
    """
    pieces = {}
    for name in sets[0].tensors:
        pieces[name] = torch.stack([one_set.tensors[name].reshape(-1).double() for one_set in sets])
    if how == "geometric-median":
        shares = _median_shares([rows for name, rows in pieces.items() if not name.endswith(STATISTICS)], len(sets))
        return torch.cat([shares @ rows for rows in pieces.values()])
    cut = (len(sets) - 1) // 2 if how == "median" else values_cut(len(sets), trim)
    return torch.cat([trimmed_mean(rows, cut) for rows in pieces.values()])


def _median_shares(pieces: Sequence[Tensor], number: int) -> Tensor:
    """The weight of each row in the geometric median of all, (n,), summing to 1. Running statistics are excluded: their
    scale is that of the data, and would dominate the distances.

    Args:
        pieces: (n, m) each, float64.
    """
    products = torch.zeros(number, number, dtype=torch.float64)
    for rows in pieces:
        # relative to the first row, so that a common offset costs no precision
        deviations = rows - rows[0]
        products += deviations @ deviations.T
    values, vectors = torch.linalg.eigh(products)
    # points with the same pairwise distances as the weights
    points = vectors * values.clamp(min=0).sqrt()
    distances = torch.linalg.vector_norm(points - geometric_median(points), dim=1)
    near = distances <= 1e-9 * distances.max()
    if bool(near.all()) or bool(near.any()):
        return near.double() / near.sum()
    return (1 / distances) / (1 / distances).sum()


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
    is_distant = distances > same
    weights = torch.where(is_distant, 1 / distances.clamp(min=torch.finfo(rows.dtype).tiny), 0.0)
    return weights @ offsets, weights.sum(), (~is_distant).sum()
