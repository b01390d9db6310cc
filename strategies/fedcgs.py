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
around the mean of all samples, which `fedcgs.covariance = "total"` gives (divided by n; theirs by n - 1). The
personalised half of the paper, which pulls private models to the means, is not implemented, because private models'
features lie in other spaces.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from protosphere import method as m
from protosphere.prototypes.prediction import SHRINKAGE, covariance_of_sums
from protosphere.prototypes.release import HALF, B, Shape, class_sums, second_moment
from protosphere.strategies.encoder_space import (
    DISCLOSURES,
    DISCRIMINANT,
    check_space,
    check_unit_vectors,
    discriminant_layout,
    discriminant_of,
    discriminant_scores,
    unknown,
)
from protosphere.strategies.one_exchange import RULES
from protosphere.strategies.release import RULE
from protosphere.strategies.statistics import (
    ROUNDING,
    Pooled,
    Statistics,
    add_clients,
    class_means_of,
    hear,
    pool,
    refute_means,
    refute_scatter,
    state_of,
)

MOMENT = "moment"
MEANS = m.Part("prototypes", counts=True)
SECOND_MOMENT = "the second moment of its samples' features, of all classes together"
UP = (MEANS, m.Part("weights", MOMENT, dtype="float32", disclosure=SECOND_MOMENT))
EXCHANGE = m.Exchange(UP, (m.Part("weights", DISCRIMINANT, dtype="float32"),), DISCLOSURES, once=True)


@m.method_settings
class FedCGSSettings:
    """`fedcgs.*`.

    Attributes:
        covariance: of samples around their class means (pooled), or around one common mean (total; authors' code).
        shrinkage: shrinkage of the pooled Sigma towards a scaled identity.
        aggregation: how each class's means are aggregated. Paper: mean.
    """

    covariance: Literal["pooled", "total"] = "pooled"
    shrinkage: Annotated[float, Field(ge=0, le=1)] = SHRINKAGE
    aggregation: m.ClassAggregation = "mean"


def layouts(num_classes: int, dim: int) -> dict[str, m.Layout]:
    """Layouts of the parts of weights: M, and the discriminant."""
    return {MOMENT: ((MOMENT, (dim, dim)),), DISCRIMINANT: discriminant_layout(num_classes, dim)}


class FedCGSObjective(m.SpaceObjective):
    """Client half: trains like `local`."""

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        """No weights of the model: the parts of weights before anything is known."""
        return unknown(layouts(self.num_classes, self.settings.feature_dim))

    def targets(self, state: m.ClientState, received: Any) -> m.PrototypeSet | None:
        """None: the received means lie in the encoder's space."""
        return None

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """Send s_ij / n_ij, n_ij and M_i / n_i in the first round."""
        if round_number > 1 or state.encoded is None:
            return None
        features, labels = state.encoded()
        sums = class_sums(features, labels, Shape(self.num_classes, features.shape[1]))
        counts = sums[:, -1] // HALF
        classes = counts.nonzero().flatten()
        if not len(classes):
            return None
        means = (sums[classes, :-1].double() / B / counts[classes].unsqueeze(1)).float()
        statistics = m.PrototypeSet(classes, means, counts[classes])
        moment = (second_moment(features) / len(features)).float()
        return {MEANS.name: statistics, MOMENT: m.Weights({MOMENT: moment})}

    def encoded_scores(self, space: m.Payload | None, directions: Tensor) -> Tensor | None:
        """z^ w_j + b_j."""
        return discriminant_scores(space, directions)


class FedCGS(m.CheckedServer):
    """Server half: sums, and their discriminant."""

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that no value of a mean is masked and that all clients have the same dimension; warn if some clients
        are not in the statistics."""
        check_space(self, num_classes, dim, layouts(num_classes, dim))
        check_unit_vectors(self)
        if self.settings.fraction_train == 1:
            return ()
        return (
            "only the clients that are sampled in round 1 send their statistics; set `fraction-train` to 1 to include "
            "all clients",
        )

    def expected_parts(self, up: tuple[m.Part, ...], state: m.State, server_round: int) -> tuple[m.Part, ...]:
        """All parts in the first round, then none."""
        return up if server_round == 1 else ()

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
        scatter = _compute_scatter(moments, means, shares)
        return refute_scatter(scatter, 2 * ROUNDING)

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Compute mu_j and Sigma from the sums of all clients, in ascending order of partitions."""
        heard, fresh = hear(uploads, state)
        if not fresh:
            return m.Outcome(state, {}, keeps=True)
        clients = add_clients(state, uploads, fresh, _read_statistics)
        pooled = pool(clients, self.num_classes, self.dim, self.options[FedCGSSettings].aggregation)
        figures = {"rows": int(pooled.weights.sum())}
        new_state = state_of(heard, clients, pooled)
        # mu_j is sent as part of the discriminant
        means = class_means_of(new_state)
        return m.Outcome(new_state, {m.EVERYONE: self._build_discriminant(pooled)}, figures, prototypes=means)

    def _build_discriminant(self, pooled: Pooled) -> m.Payload:
        options, sums, counts = self.options[FedCGSSettings], pooled.sums, pooled.weights
        total = options.covariance == "total"
        covariance = covariance_of_sums(sums, counts, pooled.moment, options.shrinkage, around_the_mean=total)
        bound = self.settings.max_prototype_norm
        return {DISCRIMINANT: discriminant_of(sums, counts, counts, covariance, bound)}


def _read_statistics(partition: int, upload: m.Payload) -> Statistics:
    """m_ij, n_ij and M_i - sum_j n_ij m_ij m_ij^T."""
    means, moments = m.prototypes_of(upload), m.weights_of(upload, MOMENT)
    assert means.counts is not None
    counts = means.counts.double()
    return Statistics(means, counts, _compute_scatter(moments, means, counts))


def _compute_scatter(moments: m.Weights, means: m.PrototypeSet, weights: Tensor) -> Tensor:
    """n (M_i / n_i) - sum_j w_j m_ij m_ij^T with n = sum_j w_j: the scatter around the class means, (d, d) float64."""
    vectors = means.vectors.double()
    between = vectors.T @ (weights.unsqueeze(1) * vectors)
    moment = moments.tensors[MOMENT].double()
    return (moment + moment.T) / 2 * weights.sum() - between


METHOD = m.Method(
    server=FedCGS,
    objective=FedCGSObjective,
    settings={"fedcgs": FedCGSSettings},
    exchange=lambda options: EXCHANGE,
    inference=RULE,
    rules=RULES,
    counts_own_rounds=True,
    # the server weights clients by their sample counts
    ignored_settings=lambda options: frozenset(),
)
