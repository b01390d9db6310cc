"""FedNCM (Legate et al., NeurIPS 2023): the nearest class mean over all clients, in the space of a public encoder.

    client   m_kc = sum of z over its n_kc samples of class c / n_kc, and n_kc; once
    server   mu_c = sum_k n_kc m_kc / sum_k n_kc
    predict  `encoder`: argmax_c z mu_c / ||mu_c||

mu_c does not depend on how the samples are partitioned: it is the mean of all. strategies/class_means.py and
one_exchange.py define the means, counts and when clients send.

Departures. Features are unit vectors, while the paper uses the encoder's output. The paper then trains all layers from
this classifier; here the encoder stays fixed, and each client trains a private model.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.strategies.class_means import MeansObjective, MeansServer, exchange_of_means
from protosphere.strategies.one_exchange import ONE_EXCHANGE


@m.method_settings
class FedNCMSettings:
    """`fedncm.*`.

    Attributes:
        fewest: classes with fewer samples are not sent. Paper: 1.
        aggregation: how each class's means are aggregated. Paper: mean.
    """

    fewest: m.AtLeastOne = 1
    aggregation: m.ClassAggregation = "mean"


class FedNCMObjective(MeansObjective):
    kind = FedNCMSettings


class FedNCM(MeansServer):
    objective = FedNCMObjective

    def weights(self, clients: Sequence[m.PrototypeSet], sums: Tensor, totals: Tensor) -> Tensor:
        """mu_c / ||mu_c||, for which the scale of the sums does not matter."""
        return normalize(sums, dim=1)


METHOD = replace(
    ONE_EXCHANGE,
    server=FedNCM,
    objective=FedNCMObjective,
    settings={"fedncm": FedNCMSettings},
    exchange=lambda options: exchange_of_means(options[FedNCMSettings].fewest),
    releases=m.any_options,
)
