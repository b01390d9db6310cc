"""The simplex equiangular tight frame: GFPL's fixed classifier, K unit vectors at equal and largest angles."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def simplex_etf(num_classes: int, dim: int, seed: int) -> Tensor:
    """Eq. 10 of GFPL, transposed: the rows z_1 .. z_K, float64 (K, d) on the CPU; a pure function of its arguments.

    Z = √(K/(K-1)) Q (I - 11ᵀ/K), with Q from the reduced QR of a random d x K matrix drawn from `seed`. Rows have
    length 1 and every two the cosine -1/(K-1), the least that K vectors can have in common.

    Raises ValueError for fewer than 2 classes, for more classes than dimensions, and unless 0 <= seed < 2^63.
    """
    if num_classes < 2:
        raise ValueError(f"A simplex frame was asked for {num_classes} classes; it needs at least 2.")
    if dim < num_classes:
        raise ValueError(
            f"A simplex frame of {num_classes} classes does not fit into {dim} dimensions by Eq. 10; "
            f"set feature-dim to at least {num_classes}."
        )
    if not 0 <= seed < 2**63:
        raise ValueError(f"The frame's seed is {seed}; it must be at least 0 and below 2^63.")
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(dim, num_classes, generator=generator, dtype=torch.float64)
    columns, triangle = torch.linalg.qr(random)
    # the signs are LAPACK's choice; with a positive diagonal the decomposition is unique
    columns = columns * triangle.diagonal().sign()
    centred = columns - columns.mean(dim=1, keepdim=True)
    return (math.sqrt(num_classes / (num_classes - 1)) * centred).T.contiguous()
