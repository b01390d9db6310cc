"""Inference rules by prototypes: the nearest prototype, and linear discriminant analysis, which is the nearest
prototype in the metric of the client's own features. The first is the second with a spherical covariance and equal
priors."""

from __future__ import annotations

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet


def nearest_scores(z: Tensor, vectors: Tensor, present: Tensor) -> Tensor:
    """Minus the Euclidean distance of each feature to each prototype, so that argmax is Eq. 6 of ProtoNorm.

    z: (n, d). vectors: (K, d). present: (K,) bool; an absent class scores -inf. Returns (n, K), of z's
    dtype, at least float32.
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    # distances from a matrix product lose precision if prototypes are close together and far from the origin
    distances = torch.cdist(z.to(dtype), vectors.to(dtype), compute_mode="donot_use_mm_for_euclid_dist")
    return torch.where(present, -distances, -torch.inf)


SHRINKAGE = 0.1
SMALLEST = 1e-6  # rounding error of an eigenvalue of sums in float32, relative to their mean


def pooled_covariance(features: Tensor, labels: Tensor, means: PrototypeSet, shrinkage: float = SHRINKAGE) -> Tensor:
    """Σ = (1 - shrinkage) S + shrinkage (tr S / d) I, S the scatter of all samples around their class means, divided by
    n.

    features: (n, d). labels: (n,) int64. means: a row for each class that occurs. Returns (d, d), float64;
    the identity when S is zero (one sample a class, constant features, no samples). Raises ValueError for a
    class without a mean and for features that are not finite.
    """
    d = features.shape[1]
    identity = torch.eye(d, dtype=torch.float64, device=features.device)
    unknown = labels[~torch.isin(labels, means.labels)]
    if len(unknown):
        raise ValueError(
            f"A sample has the class {int(unknown[0])}, which is none of the classes {means.labels.tolist()} "
            "with a mean; means and samples must be those of one client."
        )
    if not len(labels):
        return identity
    residuals = features.detach().double() - means.vectors.double()[torch.searchsorted(means.labels, labels)]
    scatter = residuals.T @ residuals / len(labels)
    spread = scatter.trace() / d
    if not bool(spread.isfinite()):
        raise ValueError(
            "The features are not finite, so they have no covariance; the model has probably diverged: "
            "lower the learning rate or the weight of the prototype loss."
        )
    if not bool(spread > 0):
        return identity
    return (1 - shrinkage) * scatter + shrinkage * spread * identity


def discriminant_scores(z: Tensor, prototypes: PrototypeSet, covariance: Tensor, num_classes: int) -> Tensor:
    """-½ (z - p)ᵀ Σ⁻¹ (z - p) + log(n_j / Σ n) for each feature and class.

    z: (n, d). prototypes: with counts. covariance: Σ, (d, d), positive definite. Returns (n, num_classes),
    float64; a class without a prototype scores -inf. Raises ValueError when the counts are missing.
    """
    if prototypes.counts is None:
        raise ValueError(
            "The discriminant rule needs the class counts of the prototypes, and this set has none; "
            "use the client's own class means, which carry them."
        )
    factor = torch.linalg.cholesky(covariance.double())
    whitened = torch.linalg.solve_triangular(factor, z.detach().double().T, upper=False).T
    centres = torch.linalg.solve_triangular(factor, prototypes.vectors.double().T, upper=False).T
    distances = torch.cdist(whitened, centres, compute_mode="donot_use_mm_for_euclid_dist")
    frequencies = prototypes.counts.double() / prototypes.counts.sum()
    scores = z.new_full((len(z), num_classes), -torch.inf, dtype=torch.float64)
    scores[:, prototypes.labels] = frequencies.log() - distances.square() / 2
    return scores


def covariance_of_sums(sums: Tensor, counts: Tensor, moment: Tensor, shrinkage: float | None) -> Tensor:
    """Sigma of all samples around their class means, from what adds up over clients:

        S = (M - sum_j s_j s_j^T / n_j) / n,    Sigma = (1 - shrinkage) S + shrinkage (tr S / d) I

    sums: s_j, (K, d). counts: n_j, (K,), 0 for a class without rows. moment: M, the sum of all z z^T, (d, d).
    shrinkage: None for that of `oracle_approximating_shrinkage`. Returns (d, d) float64, positive definite whatever the
    sums are: the identity where S is zero or none.
    """
    sums, counts = sums.double(), counts.double()
    identity = torch.eye(sums.shape[1], dtype=torch.float64, device=sums.device)
    of_the_means = sums.T @ (sums / counts.clamp_min(1).unsqueeze(1))
    scatter = (moment.double() - of_the_means) / counts.sum().clamp_min(1)
    values, axes = torch.linalg.eigh((scatter + scatter.T) / 2)
    # sums of single samples have no scatter, except for rounding errors
    noise = SMALLEST * float(moment.double().trace()) / float(counts.sum().clamp_min(1))
    if not float(values.max()) > noise:
        return identity
    values = values.clamp_min(SMALLEST * float(values.clamp_min(0).mean()))
    if shrinkage is None:
        shrinkage = oracle_approximating_shrinkage(values, float(counts.sum()))
    return (1 - shrinkage) * (axes * values) @ axes.T + shrinkage * values.mean() * identity


def oracle_approximating_shrinkage(values: Tensor, count: float) -> float:
    """How far a covariance of `count` Gaussian samples is to be shrunk towards a sphere for the least expected squared
    error: OAS (Chen, Wiesel, Eldar, Hero, 2010), in scikit-learn's simplification, which leaves out the terms in 2 / d.

    values: its eigenvalues, (d,). Returns a number in [0, 1].
    """
    d = len(values)
    of_squares, squared_sum = float(values.square().sum()), float(values.sum()) ** 2
    excess = (count + 1) * (of_squares - squared_sum / d)
    return 1.0 if excess <= 0 else min(1.0, (of_squares + squared_sum) / excess)


def linear_discriminant(means: Tensor, counts: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussian discriminant as a linear classifier: w_j = Sigma^-1 mu_j, b_j = log(n_j / n) - mu_j^T w_j / 2.

    means: (k, d). counts: (k,), above 0. covariance: Sigma, positive definite. Returns (k, d) and (k,), float64;
    z w_j + b_j and `discriminant_scores` differ by what is the same for all classes.
    """
    mu = means.double()
    weight = torch.cholesky_solve(mu.T, torch.linalg.cholesky(covariance.double())).T
    priors = (counts.double() / counts.sum()).log()
    return weight, priors - (mu * weight).sum(dim=1) / 2
