"""What few bad clients cannot move, of weights: coordinate-wise medians and trimmed means (Yin et al., ICML 2018), the
geometric median (Pillutla et al., IEEE TSP 2022).

The geometric median is a weighted mean of the uploads, whose weights follow from the products of their differences
alone: so it is found tensor by tensor.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from protosphere.prototypes.aggregation import geometric_median, trimmed_mean, values_cut
from protosphere.prototypes.weights import STATISTICS
from protosphere.wire.payloads import Payload, weights_of


def robust_mean(uploads: Mapping[int, Payload], members: Sequence[int], part: str, how: str, trim: float) -> Tensor:
    """One part of some uploads, as one: all values in the order of `flat`, float64.

    Args:
        how: "median", "trimmed-mean" (of each value, see `protosphere.prototypes.aggregation.aggregate`) or
        "geometric-median".
    """
    if how == "geometric-median":
        shares = _compute_shares(rows_of(uploads, members, part), len(members))
        return torch.cat([shares @ rows.double() for _, rows in rows_of(uploads, members, part)])
    cut = (len(members) - 1) // 2 if how == "median" else values_cut(len(members), trim)
    return torch.cat([trimmed_mean(rows.double(), cut) for _, rows in rows_of(uploads, members, part)])


def rows_of(uploads: Mapping[int, Payload], members: Sequence[int], part: str) -> Iterator[tuple[str, Tensor]]:
    """A part of weights, a row a member: the name of each tensor, and its values (n, m)."""
    tensors_by_member = [weights_of(uploads[member], part).tensors for member in members]
    for name in tensors_by_member[0]:
        yield name, torch.stack([tensors[name].reshape(-1) for tensors in tensors_by_member])


def _compute_shares(pieces: Iterator[tuple[str, Tensor]], number: int) -> Tensor:
    """What each row weighs in the geometric median of all, (n,), 1 in sum."""
    products = torch.zeros(number, number, dtype=torch.float64)
    for name, rows in pieces:
        if name.endswith(STATISTICS):
            # their scale is the data's, and would decide who is near whom
            continue
        # from the first row, so that what all have in common costs no digits
        deviations = rows.double() - rows[0].double()
        products += deviations @ deviations.T
    values, vectors = torch.linalg.eigh(products)
    # points that are as far from each other as the uploads are
    points = vectors * values.clamp(min=0).sqrt()
    distances = torch.linalg.vector_norm(points - geometric_median(points), dim=1)
    near = distances <= 1e-9 * distances.max()
    if bool(near.all()) or bool(near.any()):
        return near.double() / near.sum()
    return (1 / distances) / (1 / distances).sum()
