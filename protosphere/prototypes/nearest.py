"""The papers' rule of prediction: the class of the nearest prototype."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest_scores(z: Tensor, vectors: Tensor, present: Tensor) -> Tensor:
    """Minus the Euclidean distance of each feature to each prototype, so that argmax is Eq. 6 of ProtoNorm.

    z: (n, d). vectors: (K, d). present: (K,) bool; an absent class scores -inf. Returns (n, K), of z's
    dtype, at least float32.
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    # Distances through a matrix product cancel when prototypes lie close together and far from the origin.
    distances = torch.cdist(z.to(dtype), vectors.to(dtype), compute_mode="donot_use_mm_for_euclid_dist")
    return torch.where(present, -distances, -torch.inf)
