"""FedCGS (Guan et al., 2025): one exchange of class statistics in the space of a public encoder, and no training of it.

    client   z^ = u / ||u||, u the encoder's features; once, in the first round, it sends of its training rows
             s_ij / n_ij (the class means) and n_ij, and M_i / n_i,  M_i = sum of z^ z^^T
    server   mu_j = sum_i s_ij / sum_i n_ij,  Sigma of sum_i M_i and the class sums
    (protosphere/prototypes/prediction.py)
             w_j = Sigma^-1 mu_j,  b_j = log(n_j / n) - mu_j^T w_j / 2
    predict  `encoder`: argmax_j z^ w_j + b_j, over the classes of all clients

All that crosses are sums, so that it does not matter how rows are dealt among clients; and classes that a client lacks
it has from the others. `fedcgs.covariance` identity is FedNCM (Legate et al., 2023), the nearest mean by cosine,
for which no M crosses. Beside it every client trains a private model of any architecture, alone, as `local` does.

Clients whose means contradict most others' are left out, and none counts more than HEAVIEST medians
(strategies/statistics.py).

Departures. The features are directions z^, cut to 1/4096, as a private release's are: so sums are exact. Sigma is
shrunk towards a sphere (`fedcgs.shrinkage`), since few rows a dimension have no inverse. It is pooled within classes,
as the Gaussian discriminant has it; in the authors' code it is the total covariance, around the one mean of all rows,
which `fedcgs.covariance` total gives (divided by n, theirs by n - 1). The personalised half of the paper, which pulls
private models to the means, is not built: their features lie in other spaces.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from protosphere.core.errors import SettingError
from protosphere.prototypes.aggregation import aggregate
from protosphere.prototypes.prediction import SHRINKAGE, covariance_of_sums
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.release import HALF, B, Shape, class_sums, second_moment
from protosphere.prototypes.weights import Layout, Weights
from protosphere.strategies.contract import (
    PROTOTYPES,
    ClientState,
    Exchange,
    Method,
    Objective,
    Options,
    Outcome,
    ServerHalf,
    Spec,
    State,
    as_state,
    method_settings,
    prototype_sets,
    remembered,
    to_everyone,
)
from protosphere.strategies.encoder_space import (
    DISCRIMINANT,
    TOLD,
    check_space,
    discriminant_layout,
    discriminant_of,
    discriminant_scores,
    unknown,
)
from protosphere.strategies.release import RULE, encoder_scores
from protosphere.strategies.statistics import (
    HEAVIEST,
    Outliers,
    Pooled,
    Statistics,
    class_means_of,
    impossible_means,
    impossible_scatter,
    rounding,
    usual_samples,
)
from protosphere.wire.payloads import Payload, prototypes_of, weights_of

MOMENT = "moment"
MEANS = Spec("prototypes", counts=True)


@method_settings
class FedCGSSettings:
    """`fedcgs.*`.

    Attributes:
        covariance: Sigma, of all clients' rows around their class means (pooled) or around the one mean of all (total;
            FedCGS' code), or the identity, without priors (FedNCM).
        shrinkage: of the pooled Sigma towards a sphere of its own size, in [0, 1].
        outliers: what becomes of a client whose class means contradict most others' (not with the identity).
    """

    covariance: Literal["pooled", "total", "identity"] = "pooled"
    shrinkage: Annotated[float, Field(ge=0, le=1)] = SHRINKAGE
    outliers: Outliers = "leave-out"


def layouts(num_classes: int, dim: int) -> dict[str, Layout]:
    """Of the parts of weights: M, and the discriminant."""
    return {MOMENT: ((MOMENT, (dim, dim)),), DISCRIMINANT: discriminant_layout(num_classes, dim)}


class FedCGSObjective(Objective):
    """Client half: trains as `local` does."""

    encodes = True

    def shared(self, module: nn.Module) -> dict[str, Weights]:
        """Nothing of the model: the parts of weights as they are before anything is known."""
        if self.options[FedCGSSettings].covariance == "identity":
            return {}
        return unknown(layouts(self.num_classes, self.settings.feature_dim))

    def targets(self, state: ClientState, received: Any) -> PrototypeSet | None:
        """None: what comes lies in the encoder's space."""
        return None

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """In the first round s_ij / n_ij, n_ij and M_i / n_i."""
        if round_number > 1 or state.encoded is None:
            return None
        features, labels = state.encoded()
        sums = class_sums(features, labels, Shape(self.num_classes, features.shape[1]))
        counts = sums[:, -1] // HALF
        classes = counts.nonzero().flatten()
        if not len(classes):
            return None
        means = (sums[classes, :-1].double() / B / counts[classes].unsqueeze(1)).float()
        statistics = PrototypeSet(classes, means, counts[classes])
        if self.options[FedCGSSettings].covariance == "identity":
            return {MEANS.name: statistics}
        moment = (second_moment(features) / len(features)).float()
        return {MEANS.name: statistics, MOMENT: Weights({MOMENT: moment})}

    def released(self, prototypes: PrototypeSet, variances: Tensor | None, round_number: int) -> Payload | None:
        """In the first round the class means of a release, with its counts."""
        return {MEANS.name: prototypes} if round_number == 1 else None

    def encoded_scores(self, received: Payload | None, directions: Tensor) -> Tensor | None:
        """z^ w_j + b_j, or z^ mu_j / ||mu_j||."""
        if received is not None and MEANS.name in received:
            return encoder_scores(directions, prototypes_of(received), self.num_classes)
        return discriminant_scores(received, directions)


class FedCGS(ServerHalf):
    """Server half: sums, and the discriminant that they make."""

    @property
    def unread(self) -> frozenset[str]:
        """It adds up class means, which masks would make others."""
        return frozenset({"sparsity-dim"})

    def check(self, num_classes: int, dim: int) -> None:
        """Every value of a mean counts, and all clients have the same dimensions."""
        by_moments = self.options[FedCGSSettings].covariance != "identity"
        check_space(self, dim, layouts(num_classes, dim) if by_moments else {})

    def notices(self) -> tuple[str, ...]:
        """Say where not all clients are in the statistics."""
        if self.settings.fraction_train == 1:
            return ()
        return (
            "only the clients that are sampled in round 1 send their statistics, once; set `fraction-train` to 1 for "
            "those of all",
        )

    def uploads_due(self, server_round: int) -> bool:
        """In the first round alone."""
        return server_round == 1

    def impossible(self, partition: int, upload: Payload) -> str:
        """Means outside the unit ball, or moments that no rows with these means have; a release is noisy."""
        if self.settings.privacy != "none":
            return ""
        means = prototypes_of(upload)
        reason = impossible_means(means, self.codec.wire_dtype)
        if reason or MOMENT not in upload or means.counts is None:
            return reason
        moments = weights_of(upload, MOMENT)
        shares = means.counts.double() / means.counts.sum()
        scatter = _compute_scatter(moments, means, shares)
        return impossible_scatter(scatter, 2 * rounding(self.dim, self.codec.wire_dtype))

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """mu_j and Sigma of everybody's sums, in ascending order of partitions."""
        if self.options[FedCGSSettings].covariance == "identity":
            return self._aggregate_means(uploads, state)
        pooled = Pooled.of(state, self.dim)
        fresh = [partition for partition in uploads if partition not in pooled.heard]
        if not fresh:
            return Outcome(state, {}, keeps=True)
        usual, outliers = usual_samples(self.identities), self.options[FedCGSSettings].outliers
        pooled.hear(fresh, lambda partition: self._read_statistics(uploads[partition], usual), usual, outliers)
        _, counts, _ = pooled.sums(self.num_classes)
        downloads = pooled.downloads(self.num_classes, self._build_discriminant)
        figures, warnings = {"rows": int(counts.sum())}, pooled.warnings(self.settings.strategy)
        return Outcome(pooled.as_state(self.num_classes), downloads, figures, warnings)

    def _aggregate_means(self, uploads: Mapping[int, Payload], state: State) -> Outcome:
        """mu_j alone, of everybody who was heard so far."""
        earlier = [PrototypeSet(state["labels"], state["vectors"], state["counts"])] if state else []
        sets = [*earlier, *prototype_sets(uploads).values()]
        means = aggregate(sets, "weighted")
        counts = torch.zeros(self.num_classes, dtype=torch.int64)
        for prototypes in sets:
            assert prototypes.counts is not None
            counts[prototypes.labels] += prototypes.counts
        return Outcome({**as_state(means), "counts": counts[means.labels]}, to_everyone(means))

    def _read_statistics(self, upload: Payload, usual: float) -> Statistics:
        """m_ij, n_ij and M_i - sum_j n_ij m_ij m_ij^T, as if of HEAVIEST medians of rows at most."""
        means, moments = prototypes_of(upload), weights_of(upload, MOMENT)
        assert means.counts is not None
        counts = means.counts.double()
        weights = min(1.0, HEAVIEST * usual / float(counts.sum())) * counts
        return Statistics(means, weights, counts, _compute_scatter(moments, means, weights))

    def _build_discriminant(self, sums: Tensor, counts: Tensor, moment: Tensor) -> Payload:
        options = self.options[FedCGSSettings]
        total = options.covariance == "total"
        covariance = covariance_of_sums(sums, counts, moment, options.shrinkage, around_the_mean=total)
        bound = self.settings.max_prototype_norm
        return {DISCRIMINANT: discriminant_of(sums, counts, counts, covariance, bound)}

    def global_prototypes(self, state: State) -> PrototypeSet | None:
        """mu_j, which go down as part of the discriminant."""
        if "sums" not in state:
            return remembered(state) if state else None
        return class_means_of(state)

    def feature_norm(self, uploads: Mapping[int, Payload]) -> float | None:
        """None: an encoder's features cannot collapse."""
        return None


def _compute_scatter(moments: Weights, means: PrototypeSet, weights: Tensor) -> Tensor:
    """n (M_i / n_i) - sum_j w_j m_ij m_ij^T, n = sum_j w_j: the scatter around the class means, (d, d) float64."""
    vectors = means.vectors.double()
    between = vectors.T @ (weights.unsqueeze(1) * vectors)
    return moments.tensors[MOMENT].double() * weights.sum() - between


def _choose_exchange(options: Options) -> Exchange:
    if options[FedCGSSettings].covariance == "identity":
        return Exchange((MEANS,), (PROTOTYPES,), TOLD, once=True)
    disclosure = "the second moment of its rows' features, of all classes together"
    moment = Spec("weights", MOMENT, waits=True, dtype="float32", told=disclosure)
    return Exchange((MEANS, moment), (Spec("weights", DISCRIMINANT, dtype="float32"),), TOLD, once=True)


def _refuse_covariance(options: Options) -> None:
    """A release has class means, and no second moment of all rows."""
    if options[FedCGSSettings].covariance != "identity":
        raise SettingError(
            f"setting `fedcgs.covariance` is {options[FedCGSSettings].covariance}, of which a release holds nothing; "
            'under `privacy` it must be "identity".'
        )


METHOD = Method(
    server=FedCGS,
    objective=FedCGSObjective,
    settings={"fedcgs": FedCGSSettings},
    exchange=_choose_exchange,
    inference=RULE,
    rules=("local-prototypes", "classifier", "discriminant", RULE),
    releases=_refuse_covariance,
    counts_own_rounds=True,
)
