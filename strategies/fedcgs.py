"""FedCGS (Guan et al., 2025): one exchange of class statistics in the space of a public encoder, which is not trained.

    client   z^ = u / ||u||, u the encoder's features; once, in the first round, it sends, for its training samples,
             s_ij / n_ij (the class means) and n_ij, and M_i / n_i,  M_i = sum of z^ z^^T
    server   mu_j = sum_i s_ij / sum_i n_ij,  Sigma of sum_i M_i and the class sums
    (protosphere/prototypes/prediction.py)
             w_j = Sigma^-1 mu_j,  b_j = log(n_j / n) - mu_j^T w_j / 2
    predict  `encoder`: argmax_j z^ w_j + b_j, over the classes of all clients

Only sums are exchanged, so the result does not depend on the partition, and a client learns the classes that it lacks
from the others. Each client also trains a private model of any architecture, alone, as `local` does. A robust
`fedcgs.aggregation` replaces the sums by robust centres of the class means (strategies/statistics.py).

Departures. The features are directions z^, truncated to multiples of 1/4096, as in a private release, so that sums are
exact. Sigma is shrunk towards a scaled identity (`fedcgs.shrinkage`), because with few samples per dimension it has no
inverse. It is pooled within classes, as in the Gaussian discriminant; the authors' code takes the total covariance
around the mean of all samples. Clients send in the first round alone, even if not all of them train in it. The
personalised half of the paper, which pulls private models to the means, is not implemented, because private models'
features lie in other spaces.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.prediction import SHRINKAGE, covariance_of_sums
from protosphere.prototypes.release import HALF, B, Shape, class_sums, second_moment
from protosphere.strategies.encoder_space import DISCLOSURES, DISCRIMINANT, discriminant_layout, discriminant_of
from protosphere.strategies.one_exchange import ONE_EXCHANGE, OneExchangeObjective
from protosphere.strategies.statistics import ROUNDING, Pooled, PooledServer, Statistics, refute_means, refute_scatter

MOMENT = "moment"
MEANS = m.Part("prototypes", counts=True)
SECOND_MOMENT = "the second moment of its samples' features, of all classes together"
UP = (MEANS, m.Part("weights", MOMENT, dtype="float32", disclosure=SECOND_MOMENT))
EXCHANGE = m.Exchange(UP, (m.Part("weights", DISCRIMINANT, dtype="float32"),), DISCLOSURES, once=True)


@m.method_settings
class FedCGSSettings:
    """`fedcgs.*`.

    Attributes:
        shrinkage: shrinkage of the pooled Sigma towards a scaled identity.
        aggregation: how each class's means are aggregated. Paper: mean.
    """

    shrinkage: Annotated[float, Field(ge=0, le=1)] = SHRINKAGE
    aggregation: m.ClassAggregation = "mean"


class FedCGSObjective(OneExchangeObjective):
    kind = FedCGSSettings
    part = DISCRIMINANT

    @staticmethod
    def last_round(settings: m.Settings, options: m.Options) -> int:
        """Only the first round."""
        return 1

    @staticmethod
    def layouts(num_classes: int, dim: int) -> dict[str, m.Layout]:
        """Layouts of M and of the discriminant."""
        return {MOMENT: ((MOMENT, (dim, dim)),), DISCRIMINANT: discriminant_layout(num_classes, dim)}

    def summarise(self, features: Tensor, labels: Tensor) -> m.Payload | None:
        """s_ij / n_ij, n_ij and M_i / n_i."""
        sums = class_sums(features, labels, Shape(self.num_classes, features.shape[1]))
        counts = sums[:, -1] // HALF
        classes = counts.nonzero().flatten()
        if not len(classes):
            return None
        means = (sums[classes, :-1].double() / B / counts[classes].unsqueeze(1)).float()
        statistics = m.PrototypeSet(classes, means, counts[classes])
        moment = (second_moment(features) / len(features)).float()
        return {MEANS.name: statistics, MOMENT: m.Weights({MOMENT: moment})}


class FedCGS(PooledServer):
    objective = FedCGSObjective
    needs_unit_vectors = True

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse means outside the unit ball, and moments that no samples with these means have."""
        means = m.prototypes_of(upload)
        reason = refute_means(means)
        if reason or means.counts is None:
            return reason
        moments = m.weights_of(upload, MOMENT)
        moment = moments.tensors[MOMENT].double()
        if float((moment - moment.T).abs().max()) > ROUNDING:
            return "its second moment is not symmetric"
        shares = means.counts.double() / means.counts.sum()
        return refute_scatter(_compute_scatter(moments, means, shares), 2 * ROUNDING)

    def read(self, partition: int, upload: m.Payload) -> Statistics:
        """m_ij, n_ij and M_i - sum_j n_ij m_ij m_ij^T."""
        means, moments = m.prototypes_of(upload), m.weights_of(upload, MOMENT)
        assert means.counts is not None
        counts = means.counts.double()
        return Statistics(means, counts, _compute_scatter(moments, means, counts))

    def classifier(self, pooled: Pooled) -> m.Payload:
        """w_j and b_j."""
        sums, counts = pooled.sums, pooled.weights
        covariance = covariance_of_sums(sums, counts, pooled.moment, self.options[FedCGSSettings].shrinkage)
        return {DISCRIMINANT: discriminant_of(sums, counts, counts, covariance, self.settings.max_prototype_norm)}


def _compute_scatter(moments: m.Weights, means: m.PrototypeSet, weights: Tensor) -> Tensor:
    """n (M_i / n_i) - sum_j w_j m_ij m_ij^T with n = sum_j w_j: the scatter around the class means, (d, d) float64."""
    vectors = means.vectors.double()
    between = vectors.T @ (weights.unsqueeze(1) * vectors)
    moment = moments.tensors[MOMENT].double()
    return (moment + moment.T) / 2 * weights.sum() - between


METHOD = replace(
    ONE_EXCHANGE,
    server=FedCGS,
    objective=FedCGSObjective,
    settings={"fedcgs": FedCGSSettings},
    exchange=lambda options: EXCHANGE,
)
