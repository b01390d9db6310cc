"""The linear discriminant of one client's own samples in the space of a public encoder. It shows what that space gives
without an exchange, and is the control of every method that exchanges something in it.

    q_j = z^ w_j + b_j,  w_j = Sigma^-1 m_j,  b_j = -m_j^T w_j / 2
    Sigma = (1 - s) S + s (tr S / d) I, S the scatter of the training samples around their class means m_j

The shrinkage s is the one of SHRINKAGES with the most correct validation samples; ties go to the one nearest to USUAL,
which is also used without validation samples.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protosphere.prototypes.prediction import SHRINKAGE as USUAL
from protosphere.prototypes.prediction import linear_discriminant, pooled_covariance
from protosphere.prototypes.prototype_set import class_means

SHRINKAGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class OwnDiscriminant:
    """q of a client's own samples.

    Attributes:
        weight: w_j, (K, d) float64.
        bias: b_j, (K,) float64, minus infinity for a class without samples.
        counts: n_j, (K,) float64.
        shrinkage: s.
    """

    weight: Tensor
    bias: Tensor
    counts: Tensor
    shrinkage: float

    def class_scores(self, directions: Tensor) -> Tensor:
        """q without priors, (n, d) to (n, K) float64."""
        return directions.double() @ self.weight.T + self.bias

    def scores(self, directions: Tensor) -> Tensor:
        """q_j + log(n_j / n), (n, d) to (n, K) float64."""
        return self.class_scores(directions) + (self.counts / self.counts.sum()).log()


def own_discriminant(
    features: Tensor, labels: Tensor, num_classes: int, validation_features: Tensor, validation_labels: Tensor
) -> OwnDiscriminant | None:
    """The discriminant of training samples; None without any.

    Args:
        features, validation_features: (n, d) and (m, d), finite.
        labels, validation_labels: (n,) and (m,) int64.
    """
    if not len(labels):
        return None
    candidates = [
        _fit(features.double(), labels, num_classes, shrinkage)
        for shrinkage in sorted(SHRINKAGES, key=lambda shrinkage: abs(math.log(shrinkage / USUAL)))
    ]

    def right(candidate: OwnDiscriminant) -> int:
        return int((candidate.scores(validation_features).argmax(dim=1) == validation_labels).sum())

    # the first of several equally good ones
    return max(candidates, key=right)


def _fit(features: Tensor, labels: Tensor, num_classes: int, shrinkage: float) -> OwnDiscriminant:
    means = class_means(features, labels, num_classes)
    assert means.counts is not None
    covariance = pooled_covariance(features, labels, means, shrinkage)
    # equal class counts, so that the bias contains no prior
    weight, bias = linear_discriminant(means.vectors, torch.ones_like(means.counts), covariance)
    all_weight = torch.zeros(num_classes, features.shape[1], dtype=torch.float64)
    all_bias = torch.full((num_classes,), -torch.inf, dtype=torch.float64)
    all_counts = torch.zeros(num_classes, dtype=torch.float64)
    all_weight[means.labels], all_bias[means.labels] = weight, bias
    all_counts[means.labels] = means.counts.double()
    return OwnDiscriminant(all_weight, all_bias, all_counts, shrinkage)
