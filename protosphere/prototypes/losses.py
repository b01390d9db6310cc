"""Losses that pull features towards prototypes: the prototype pull in its three reductions, the contrastive loss on the
sphere, and penalties against collapse."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, log_softmax, mse_loss, one_hot, softmax

PULLS = ("mse", "l2", "l2-squared")
CONTRASTS = ("mean", "none")


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
    covered = present[labels]
    # a sample without a target gets itself as target: distance 0, no gradient
    places = torch.where(covered.unsqueeze(1), targets[labels], features.detach())
    if reduction == "l2":
        # its gradient at distance 0 is 0 in torch, where that of a square root of squares is NaN
        total = torch.linalg.vector_norm(features - places, dim=1).sum()
    else:
        total = mse_loss(features, places, reduction="sum")
    rows = covered.sum().clamp(min=1)
    return total / (rows * features.shape[1] if reduction == "mse" else rows)


def cosine_pull(features: Tensor, labels: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    """L_R of FedORGP: the mean of 1 - cos(z, t_y) over the samples whose class has a target; a scalar, 0 without any.

    features: z, (n, d). labels: (n,) int64 in 0..K-1. targets: t, (K, d); rows of absent classes hold any finite value.
    present: (K,) bool.
    """
    covered = present[labels]
    distances = 1 - cosine_similarity(features, targets[labels], dim=1)
    return torch.where(covered, distances, 0.0).sum() / covered.sum().clamp(min=1)


def prototype_contrast(
    features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor, temperature: float, reduction: str = "mean"
) -> Tensor:
    """L_global of FedPAGR (section 3.6) and FedProc's contrastive term: CE(ẑ·Pᵀ / temperature, y).

    features: ẑ, (n, d) unit rows. labels: (n,) int64 in 0..K-1. prototypes: (K, d) unit rows; rows of absent
    classes hold any finite value. present: (K,) bool, the classes that the softmax runs over; the others get
    neither probability nor gradient. temperature: β of FedPAGR, τ of FedProc; above 0.

    reduction: `mean`, a scalar over the samples whose class is present, 0 without any; `none`, a value for each
    sample (n,), 0 with a zero gradient for those whose class is absent. Nothing here waits for the device. Raises
    ValueError for an unknown reduction and a temperature that is not above 0.
    """
    if reduction not in CONTRASTS:
        raise ValueError(f"The reduction {reduction!r} is unknown; choose one of {', '.join(CONTRASTS)}.")
    logits = _cosine_logits(features, prototypes, present, temperature)
    covered = present[labels]
    values = torch.where(covered, cross_entropy(logits, labels, reduction="none"), 0.0)
    return values if reduction == "none" else values.sum() / covered.sum().clamp(min=1)


def entropy_spread(features: Tensor, prototypes: Tensor, present: Tensor, temperature: float) -> Tensor:
    """L_ent of FedPAGR: -mean_x (1/K) Σ_c log softmax(ẑ·Pᵀ / temperature)_c over the K present classes; a scalar.

    Its minimum, ln K, is reached if every sample is equally close to all prototypes. Arguments as for
    `prototype_contrast`; without a present class it is 0 and so is its gradient. Raises ValueError for a temperature
    that is not above 0.
    """
    logs = log_softmax(_cosine_logits(features, prototypes, present, temperature), dim=1)
    total = logs.masked_fill(~present, 0.0).sum()
    return -total / (present.sum().clamp(min=1) * max(len(features), 1))


def dot_regression(projections: Tensor, labels: Tensor, frame: Tensor) -> Tensor:
    """L_DR of GFPL (Eq. 12): the mean over samples of ½ (h·z_y - 1)²; a scalar, 0 where every h is its class's vector.

    projections: h, (n, d) unit rows. labels: (n,) int64 in 0..K-1. frame: z, (K, d) unit rows.
    """
    return ((projections * frame[labels]).sum(dim=1) - 1).square().mean() / 2


def prototype_probabilities(features: Tensor, prototypes: Tensor, present: Tensor, temperature: float) -> Tensor:
    """softmax(ẑ·Pᵀ / temperature) over the present classes, (n, K): FedPAGR's and FedProc's class probabilities.

    An absent class has probability 0 (without a present one all are equal). Arguments as for `prototype_contrast`.
    Raises ValueError for a temperature that is not above 0.
    """
    return softmax(_cosine_logits(features, prototypes, present, temperature), dim=1)


def _cosine_logits(features: Tensor, prototypes: Tensor, present: Tensor, temperature: float) -> Tensor:
    """(n, K) in the prototypes' dtype; absent classes are as low as it goes, since a row of -inf alone gives NaN."""
    if not temperature > 0:
        raise ValueError(
            f"The temperature of the prototype logits is {temperature}; it must be above 0; to disable the term, "
            "remove it from the loss."
        )
    cosines = (features.to(prototypes.dtype) @ prototypes.T).to(prototypes.dtype)
    return (cosines / temperature).masked_fill(~present, torch.finfo(prototypes.dtype).min)


def class_pull(features: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """FedFA's: (1/K) times the sum over the batch's classes of its rows' mean squared distance to the anchor; a scalar.

    features: z, (n, d). labels: (n,) int64 in 0..K-1. anchors: a, (K, d).
    """
    squares = (features - anchors[labels]).square().sum(dim=1)
    rows = one_hot(labels, len(anchors)).sum(dim=0)
    return (squares / rows[labels]).sum() / len(anchors)


def missing_variance(probabilities: Tensor) -> Tensor:
    """V of FedUV: mean over classes of max(0, t - std of the class's probability over the batch); a scalar.

    probabilities: (n, K), rows that sum to 1. t = 1/sqrt(K) is what an identity matrix has (std unbiased). 0 with a
    zero gradient for a batch of one row, which has no deviation.
    """
    if len(probabilities) < 2:
        return probabilities.sum() * 0
    return torch.relu(probabilities.shape[1] ** -0.5 - probabilities.std(dim=0)).mean()


def uniformity(features: Tensor) -> Tensor:
    """U of FedUV: mean over pairs of exp(-||z_i - z_j||^2 / m), m the median of the squares above 0; a scalar.

    features: z, (n, d). m has its gradient, so the term does not depend on the features' scale. 0 with a zero
    gradient where no two rows differ.
    """
    # without a matrix product, whose rounding would make distances of equal rows other than 0
    rows, columns = torch.triu_indices(len(features), len(features), 1, device=features.device)
    squares = (features[rows] - features[columns]).square().sum(dim=1)
    is_distinct = squares > 0
    # nothing here waits for the device; selecting or counting the squares above 0 would
    middle = torch.where(is_distinct, squares, torch.nan).nanmedian()
    terms = torch.exp(-squares / torch.where(is_distinct.any(), middle, 1.0))
    return torch.where(is_distinct.any(), terms.mean(), features.sum() * 0)


def divergence(logits: Tensor, teacher: Tensor, reduction: str = "batch") -> Tensor:
    """KL(softmax teacher || softmax logits) of two models' logits (n, K), with the gradients of both; a scalar.

    reduction: `batch`, the mean over rows of the sum over classes; `element`, the mean over both, a K-th of it.
    """
    rows = kl_div(log_softmax(logits, dim=1), log_softmax(teacher, dim=1), reduction="batchmean", log_target=True)
    return rows / logits.shape[1] if reduction == "element" else rows


def diversity(noise: Tensor, features: Tensor, labels: Tensor | None = None) -> Tensor:
    """FedGen's diversity: exp(-mean over pairs (a, b) of mse(eps_a, eps_b) mean|G_a - G_b|); a scalar in (0, 1].

    noise: eps, (n, q). features: G, (n, d). labels: (n,) int64; with them a pair of one class adds 0 to the mean, which
    still divides by all n^2 (FedPA), so that it is 1 with a zero gradient where all rows are of one class.
    """
    products = (noise.unsqueeze(1) - noise).square().mean(dim=2) * (features.unsqueeze(1) - features).abs().mean(dim=2)
    if labels is not None:
        products = products * (labels.unsqueeze(1) != labels)
    return torch.exp(-products.mean())


KERNELS = 5
KERNEL_STEP = 2.0  # the width of a kernel over that of the one before


def kernel_mmd(one: Tensor, other: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples by a sum of Gaussian kernels (biased: all pairs); a scalar >= 0.

    one: (n, d). other: (m, d). The kernels are exp(-||a - b||^2 / w); w goes in steps of KERNEL_STEP around the mean
    squared distance of two different rows of both samples, which has no gradient. Rows that are all equal give 0.
    """
    both = torch.cat([one, other])
    squares = (both.unsqueeze(1) - both).square().sum(dim=2)
    middle = squares.detach().sum() / (len(both) * (len(both) - 1))
    tiny = torch.finfo(squares.dtype).tiny
    kernels = torch.zeros_like(squares)
    for step in range(KERNELS):
        width = middle * KERNEL_STEP ** (step - KERNELS // 2)
        kernels = kernels + torch.exp(-squares / width.clamp(min=tiny))
    n = len(one)
    return kernels[:n, :n].mean() + kernels[n:, n:].mean() - 2 * kernels[:n, n:].mean()
