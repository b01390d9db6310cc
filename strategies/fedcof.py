"""FedCOF (Goswami et al., NeurIPS 2025; arXiv 2412.14326): the covariance of each class from how its means scatter
among clients, and a ridge classifier of it, in the space of a public encoder. No second moment crosses.

    client   m_kc = sum of z over its n_kc samples of class c / n_kc, and n_kc; once
    server   mu_c = sum_k n_kc m_kc / N_c,  N_c = sum_k n_kc,  K_c the number of clients that sent c,
             Sigma_c = 1 / (K_c - 1) sum_k n_kc (m_kc - mu_c) (m_kc - mu_c)^T + gamma v I
             G = sum_c (N_c - 1) Sigma_c + N mu mu^T,  N = sum_c N_c,  mu the mean of all samples
             w_c = G^-1 N_c mu_c,  w_c / ||w_c||
    predict  `encoder`: argmax_c z w_c

Where each client's samples of a class are drawn alike, the scatter has the class's covariance as its mean, however
many samples each client has. Only what varies within classes is in G (Fed3R's has what lies between them, too), which
the paper found to be better. Everybody's means and counts, and who is heard when: strategies/class_means.py and
one_exchange.py. The formula is that of the authors' code (github.com/dipamgoswami/FedCOF, federate_classes.py).

Of a class that one client alone has sent nothing scatters: there Sigma_c is gamma v I, as in the authors' code, and a
warning names the class. Where that is so of all classes, FedCOF tells them apart as FedNCM does, but for N mu mu^T.
Where clients hold unlike samples of a class, the scatter is larger than the covariance, by how their means differ.

Departures. Features are unit vectors, where the paper has them as the encoder gives them. So gamma, the authors' own,
is measured in v = sum_c N_c (1 - ||mu_c||^2) / (N d): the mean variance of a feature within classes, which for unit
vectors follows from the means. Where no class has two samples gamma v I stands for the sum of covariances.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.prototypes.aggregation import FEW
from protosphere.strategies.class_means import MeansObjective, MeansServer, exchange_of_means
from protosphere.strategies.encoder_space import check_unit_vectors
from protosphere.strategies.one_exchange import RULES, some_of
from protosphere.strategies.release import RULE

LEAST_VARIANCE = 1e-9  # of a feature, where all means are as long as samples, or noise makes them longer


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
    """Client half."""

    @property
    def fewest(self) -> int:
        return self.options[FedCOFSettings].fewest


class FedCOF(MeansServer):
    """Server half: covariances of means, and the classifier."""

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """v follows from unit vectors alone."""
        check_unit_vectors(self)
        return super().check(num_classes, dim)

    @property
    def aggregation(self) -> m.ClassAggregation:
        return self.options[FedCOFSettings].aggregation

    def weights(self, clients: Sequence[m.PrototypeSet]) -> Tensor:
        """w_c / ||w_c||."""
        sums, totals = self.totals(clients)
        variance = mean_variance(sums, totals)
        centres = None if self.aggregation == "mean" else sums / totals.clamp(min=1e-300).unsqueeze(1)
        gram = gram_of(clients, self.options[FedCOFSettings].gamma * variance, centres)
        return normalize(sums @ torch.linalg.pinv(gram, hermitian=True), dim=1)

    def warnings(self, clients: Sequence[m.PrototypeSet]) -> tuple[str, ...]:
        """The classes that one client alone has sent."""
        labels = torch.cat([means.labels for means in clients])
        lone_labels = (torch.bincount(labels, minlength=self.num_classes) == 1).nonzero().flatten().tolist()
        if not lone_labels:
            return ()
        names = some_of([self.class_word(label) for label in lone_labels])
        return (
            f"one client alone sent the mean of {names}: how a class varies follows from those of two clients or more, "
            "so here it is taken to vary alike in all directions",
        )


def scatter_of(means: Tensor, counts: Tensor, centre: Tensor | None = None) -> Tensor:
    """1 / (K_c - 1) sum_k n_kc (m_kc - mu_c)(m_kc - mu_c)^T of one class, (d, d) float64: its covariance, without bias.

    Args:
        means: m_kc, (K_c, d). counts: n_kc, (K_c,). Of one client it is 0.
        centre: a robust mu_c, (d,); then no term of the sum is larger than the median of their traces.
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
    """v: of a feature within classes, of unit vectors with these sums (K, d) and counts (K,) by class."""
    within = totals - sums.square().sum(dim=1) / totals.clamp(min=LEAST_VARIANCE)
    return max(float(within.sum() / (totals.sum().clamp(min=1) * sums.shape[1])), LEAST_VARIANCE)


def gram_of(clients: Sequence[m.PrototypeSet], added: float, centres: Tensor | None = None) -> Tensor:
    """G, (d, d) float64.

    Args:
        added: to the variances of each class. centres: robust mu_c of all classes, (K, d); None for the means.
    """
    labels = torch.cat([means.labels for means in clients])
    vectors = torch.cat([means.vectors for means in clients]).double()
    counts = torch.cat([means.counts for means in clients if means.counts is not None])
    mean = counts.double() @ (vectors if centres is None else centres[labels]) / counts.sum().clamp(min=1)
    spherical = added * torch.eye(vectors.shape[1], dtype=torch.float64)
    within = torch.zeros_like(spherical)
    for label in labels.unique():
        is_of_class = labels == label
        # of two clients nobody can say which is the odd one
        centre = None if centres is None or int(is_of_class.sum()) < FEW else centres[label]
        covariance = scatter_of(vectors[is_of_class], counts[is_of_class], centre) + spherical
        # with `client-weights` "equal" a class may count as less than one sample
        within += (counts[is_of_class].sum() - 1).clamp(min=0) * covariance
    if not within.any():
        within = spherical
    return within + counts.sum() * torch.outer(mean, mean)


METHOD = m.Method(
    server=FedCOF,
    objective=FedCOFObjective,
    settings={"fedcof": FedCOFSettings},
    exchange=lambda options: exchange_of_means(options[FedCOFSettings].fewest),
    inference=RULE,
    rules=RULES,
    releases=m.any_options,
    counts_own_rounds=True,
    # the server weighs clients by their samples
    ignored_settings=lambda options: frozenset(),
)
