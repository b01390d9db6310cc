"""What draws features towards prototypes in training: the prototype pull, in its three reductions."""

from __future__ import annotations

import torch
from torch import Tensor

PULLS = ("mse", "l2", "l2-squared")


def prototype_pull(
    features: Tensor, labels: Tensor, targets: Tensor, present: Tensor, reduction: str = "mse"
) -> Tensor:
    """The regulariser R of FedProto and its descendants: each sample against its label's target; a scalar.

    features: z, (n, d). labels: (n,) int64 in 0..K-1. targets: t, (K, d); rows of absent classes hold
    any finite value. present: (K,) bool, whether a class has a target.

    reduction: `mse`, the mean over samples and dimensions of (z - t)² (what the papers' released code
    computes); `l2`, the mean over samples of ‖z - t‖; `l2-squared`, the mean over samples of ‖z - t‖². The
    mean is over the samples whose class has a target; without any the pull is 0 and so is its gradient. With
    ProtoNorm's upscaling (Eq. 15) the targets are γ·ĉ. Nothing here waits for the device. Raises ValueError
    for an unknown reduction.
    """
    if reduction not in PULLS:
        raise ValueError(f"The prototype loss {reduction!r} is unknown; choose one of {', '.join(PULLS)}.")
    offsets = features - targets[labels]
    if reduction == "l2":
        # its gradient at distance 0 is 0 in torch, where that of a square root of squares is NaN
        distances = torch.linalg.vector_norm(offsets, dim=1)
    elif reduction == "l2-squared":
        distances = offsets.square().sum(dim=1)
    else:
        distances = offsets.square().mean(dim=1)
    weights = present[labels].to(distances.dtype)
    return (distances * weights).sum() / weights.sum().clamp(min=1)
