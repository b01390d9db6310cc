"""FedCOF (Goswami et al., NeurIPS 2025; arXiv 2412.14326): estimates each class's covariance from the scatter of its
means across clients, and a ridge classifier from it, in the space of a public encoder. No second moments are exchanged.

    client   m_kc = sum of z over its n_kc samples of class c / n_kc, and n_kc; once
    server   mu_c = sum_k n_kc m_kc / N_c,  N_c = sum_k n_kc,  K_c the number of clients that sent c,
             Sigma_c = 1 / (K_c - 1) sum_k n_kc (m_kc - mu_c) (m_kc - mu_c)^T + gamma v I
             G = sum_c (N_c - 1) Sigma_c + N mu mu^T,  N = sum_c N_c,  mu the mean of all samples
             w_c = G^-1 N_c mu_c,  w_c / ||w_c||
    predict  `encoder`: argmax_c z w_c

If the clients' samples of a class are identically distributed, the expected scatter is the class's covariance, whatever
the sample counts. G holds only the variation within classes (Fed3R's also holds that between classes), which the paper
found to be better. strategies/class_means.py and one_exchange.py define the means, counts and when clients send. The
formula is that of the authors' code (github.com/dipamgoswami/FedCOF, federate_classes.py).

A class that only one client has sent has no scatter: its Sigma_c is gamma v I, as in the authors' code. If that holds
for all classes, FedCOF decides like FedNCM, except for N mu mu^T. If the clients' distributions of a class differ, the
scatter exceeds the covariance by the differences of their means.

Departures. Features are unit vectors, while the paper uses the encoder's output. So the authors' gamma is measured in
units of v = sum_c N_c (1 - ||mu_c||^2) / (N d): the mean variance of a feature within classes, which for unit vectors
follows from the means. If no class has two samples, gamma v I replaces the sum of covariances.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.prototypes.aggregation import FEW
from protosphere.strategies.class_means import MeansObjective, MeansServer, exchange_of_means
from protosphere.strategies.one_exchange import ONE_EXCHANGE

LEAST_VARIANCE = 1e-9  # least variance of a feature, for means that are as long as samples, or made longer by noise


@m.method_settings
class FedCOFSettings:
    """`fedcof.*`.

    Attributes:
        gamma: added to the variances, in units of their mean within classes. Authors: 1 (MobileNetV2: 0.1), for
            unscaled features.
        fewest: classes with fewer samples are not sent. Paper: 1.
        aggregation: how each class's means are aggregated; robust means also bound each client's scatter. Paper: mean.
    """

    gamma: m.Positive = 1.0
    fewest: m.AtLeastOne = 1
    aggregation: m.ClassAggregation = "mean"


class FedCOFObjective(MeansObjective):
    kind = FedCOFSettings


class FedCOF(MeansServer):
    objective = FedCOFObjective
    # without unit vectors, v does not follow from the means
    needs_unit_vectors = True

    def weights(self, clients: Sequence[m.PrototypeSet], sums: Tensor, totals: Tensor) -> Tensor:
        variance = mean_variance(sums, totals)
        centres = None if self.aggregation == "mean" else sums / totals.clamp(min=1e-300).unsqueeze(1)
        gram = gram_of(clients, self.options[FedCOFSettings].gamma * variance, centres)
        return normalize(sums @ torch.linalg.pinv(gram, hermitian=True), dim=1)


def scatter_of(means: Tensor, counts: Tensor, centre: Tensor | None = None) -> Tensor:
    """1 / (K_c - 1) sum_k n_kc (m_kc - mu_c)(m_kc - mu_c)^T of one class, (d, d) float64: an unbiased estimate of its
    covariance, 0 for a single client.

    Args:
        means: m_kc, (K_c, d).
        counts: n_kc, (K_c,).
        centre: a robust mu_c, (d,); no term of the sum then exceeds the median of their traces.
    """
    means, counts = means.double(), counts.double().unsqueeze(1)
    if centre is None:
        deviations = means - (counts * means).sum(dim=0) / counts.sum()
    else:
        deviations = means - centre
        traces = counts * deviations.square().sum(dim=1, keepdim=True)
        deviations = deviations * (traces.median() / traces.clamp(min=1e-300)).clamp(max=1).sqrt()
    return deviations.T @ (counts * deviations) / max(len(means) - 1, 1)


def mean_variance(sums: Tensor, totals: Tensor) -> float:
    """v: the mean variance of a feature within classes, for unit vectors with these sums (K, d) and counts (K,) per
    class."""
    within = totals - sums.square().sum(dim=1) / totals.clamp(min=LEAST_VARIANCE)
    return max(float(within.sum() / (totals.sum().clamp(min=1) * sums.shape[1])), LEAST_VARIANCE)


def gram_of(clients: Sequence[m.PrototypeSet], added: float, centres: Tensor | None = None) -> Tensor:
    """G, (d, d) float64.

    Args:
        added: added to the variances of each class.
        centres: robust mu_c of all classes, (K, d); None for the means.
    """
    labels = torch.cat([means.labels for means in clients])
    vectors = torch.cat([means.vectors for means in clients]).double()
    counts = torch.cat([means.counts for means in clients if means.counts is not None])
    mean = counts.double() @ (vectors if centres is None else centres[labels]) / counts.sum().clamp(min=1)
    spherical = added * torch.eye(vectors.shape[1], dtype=torch.float64)
    within = torch.zeros_like(spherical)
    for label in labels.unique():
        is_of_class = labels == label
        # with two clients, neither can be identified as the outlier
        centre = None if centres is None or int(is_of_class.sum()) < FEW else centres[label]
        covariance = scatter_of(vectors[is_of_class], counts[is_of_class], centre) + spherical
        # with `client-weights` "equal", a class may count as less than one sample
        within += (counts[is_of_class].sum() - 1).clamp(min=0) * covariance
    if not within.any():
        within = spherical
    return within + counts.sum() * torch.outer(mean, mean)


METHOD = replace(
    ONE_EXCHANGE,
    server=FedCOF,
    objective=FedCOFObjective,
    settings={"fedcof": FedCOFSettings},
    exchange=lambda options: exchange_of_means(options[FedCOFSettings].fewest),
    releases=m.any_options,
)
