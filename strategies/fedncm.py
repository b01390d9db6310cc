"""FedNCM (Legate et al., NeurIPS 2023): the nearest class mean over all clients, in the space of a public encoder.

    client   m_kc = sum of z over its n_kc samples of class c / n_kc, and n_kc; once
    server   mu_c = sum_k n_kc m_kc / sum_k n_kc
    predict  `encoder`: argmax_c z mu_c / ||mu_c||

However the samples lie among clients, mu_c is the mean of all. Everybody's means and counts, and who is heard when:
strategies/class_means.py and one_exchange.py.

Departures. Features are unit vectors, where the paper has them as the encoder gives them. The paper goes on to train
all layers from this classifier; here the encoder stays as it is, and a private model is trained beside it.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.strategies.class_means import MeansObjective, MeansServer, exchange_of_means
from protosphere.strategies.one_exchange import RULES
from protosphere.strategies.release import RULE


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
    """Client half."""

    @property
    def fewest(self) -> int:
        return self.options[FedNCMSettings].fewest


class FedNCM(MeansServer):
    """Server half."""

    @property
    def aggregation(self) -> m.ClassAggregation:
        return self.options[FedNCMSettings].aggregation

    def weights(self, clients: Sequence[m.PrototypeSet]) -> Tensor:
        """mu_c / ||mu_c||: the length of a sum of samples does not matter."""
        sums, _ = self.totals(clients)
        return normalize(sums, dim=1)


METHOD = m.Method(
    server=FedNCM,
    objective=FedNCMObjective,
    settings={"fedncm": FedNCMSettings},
    exchange=lambda options: exchange_of_means(options[FedNCMSettings].fewest),
    inference=RULE,
    rules=RULES,
    releases=m.any_options,
    counts_own_rounds=True,
    # the server weighs clients by their samples
    ignored_settings=lambda options: frozenset(),
)
