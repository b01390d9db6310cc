"""Protosphere: one exchange of class means in a public encoder's space, combined with private models of any
architecture.

    space    z^ = u / ||u||, u of a public encoder: `handcrafted`, unless `encoder` names another
    client   L = CE(g(z), y) + lambda R(z, gamma c_y), c the seed's frame (strategies/frame.py); so no target is sent
             once: m_ij of C_i, those of its k_i classes with n_ij >= max(fewest, share n_i / k_i); and
             S_i = sum over its rows of (z^ - m_iy)(z^ - m_iy)^T / n_i, half of it, in 16 bits
    server   w_ij = n_i / |C_i|, since class counts stay local; mu_j = sum_i w_ij m_ij / sum_i w_ij
             Sigma = sum_i (n_i S_i + sum_j w_ij (m_ij - mu_j)(m_ij - mu_j)^T) / sum_i n_i, shrunk to a sphere as
             far as so many samples of so many dimensions need it (OAS: Chen et al., 2010)
             once, in 16 bits: A = L^-1 with Sigma = L L^T, and A mu_j
             mu_j is a mean of clipped m_ij, so that a few false uploads move it little (strategies/statistics.py)
    client   q_j = (A z^)^T A mu_j - ||A mu_j||^2 / 2; mu_j is the local m_ij for a class that no client has sent
    predict  `pool`: argmax_j (1 - w_i) log softmax(g(z))_j + w_i log softmax(t_i q + log pi_i)_j,
             pi_ij = (n_ij + 1/K) / (n_i + 1);  t_i <= 1 by which the client's training samples are most likely, w_i by
             which its validation samples are, near 1/2 where these are few (strategies/encoder_space.py)
             `encoder`: argmax_j q_j, which includes classes that a client lacks

In the pool, an unknown class gets the lowest known q. If clients are sampled, they send in several rounds, and each
counts once.

The components are known: a linear discriminant from sums (FedCGS, Guan et al., 2025), a fixed frame (ProtoNorm's
control), the logarithmic opinion pool (Genest and Zidek, 1986), and gradients as features. docs/results.md shows what
each contributes.
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax

from protosphere import method as m
from protosphere.core.devices import exact
from protosphere.prototypes.prediction import covariance_of_sums
from protosphere.strategies.encoder_space import (
    BIAS,
    DISCLOSURES,
    DISCRIMINANT,
    KNOWN,
    WEIGHT,
    choose_temperature,
    directions,
    inverse_factor,
    opinion_pool,
    within_bound,
)
from protosphere.strategies.frame import seeded_frame
from protosphere.strategies.one_exchange import ONE_EXCHANGE, OneExchangeObjective
from protosphere.strategies.release import POOL, RULE
from protosphere.strategies.statistics import (
    Pooled,
    PooledServer,
    Statistics,
    from_half,
    refute_means,
    refute_scatter,
    to_half,
    triangle,
)

SCATTER = "scatter"
MU, WHITENING = "means", "whitening"  # A mu_j (K, d), and the upper half of A^T as one row
MEANS = m.Part("prototypes")
# factor of the scatter's values, which are at most 1, so that 16 bits hold small ones; a power of two is exact
SCALE = 2.0**12
MOST = 6e4  # a norm bound whose values 16 bits can hold


@m.method_settings
class ProtosphereSettings:
    """`protosphere.*`.

    Attributes:
        gamma: scale of the frame, as `protonorm.gamma`.
        shrinkage: shrinkage of the pooled Sigma towards a scaled identity; 0: by its number of samples (OAS).
        fewest: classes with fewer samples are not sent, unless a client has no larger one.
        share: as `fewest`, but a share of the client's average class size. With a lower share more clients vote on
            a class, which outvotes liars, but its means are noisier.
        aggregation: how means of a class with three or more holders are aggregated; robust means also bound each
            client's scatter.
        exchanges: first rounds in which clients send (their first upload counts); 0: one if all clients train in each
            round, otherwise enough for nearly all.
    """

    gamma: m.Positive = 10.0
    shrinkage: Annotated[float, Field(ge=0, le=1)] = 0.0
    fewest: m.AtLeastOne = 5
    share: m.Share = 0.5
    aggregation: m.ClassAggregation = "clipped-mean"
    exchanges: m.Count = 0


class ProtosphereObjective(OneExchangeObjective, m.Pulled):
    kind = ProtosphereSettings
    part = DISCRIMINANT
    encoder = "handcrafted"

    @staticmethod
    def last_round(settings: m.Settings, options: m.Options) -> int:
        """As set by `protosphere.exchanges`."""
        return options[ProtosphereSettings].exchanges or OneExchangeObjective.last_round(settings, options)

    @staticmethod
    def layouts(num_classes: int, dim: int) -> dict[str, m.Layout]:
        """Layouts of half of S as one row; and of A, the class means, and which classes are known."""
        half = dim * (dim + 1) // 2
        down = ((KNOWN, (num_classes,)), (MU, (num_classes, dim)), (WHITENING, (1, half)))
        return {SCATTER: ((SCATTER, (1, half)),), DISCRIMINANT: down}

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """gamma c of all classes, from round 1 on."""
        frame = seeded_frame(self.num_classes, self.settings.feature_dim, self.settings.seed)
        return frame.with_vectors(self.options[ProtosphereSettings].gamma * frame.vectors)

    def summarise(self, features: Tensor, labels: Tensor) -> m.Payload:
        """m_ij and S_i."""
        unit_features = directions(features, self.settings.encoder_radius)
        counts = torch.bincount(labels, minlength=self.num_classes)
        sums = torch.zeros(self.num_classes, unit_features.shape[1], dtype=torch.float64).index_add_(
            0, labels, unit_features
        )
        means = sums / counts.clamp_min(1).unsqueeze(1)
        deviations = unit_features - means[labels]
        half = to_half(scale_of(self.settings) * (deviations.T @ deviations) / max(len(labels), 1))
        options = self.options[ProtosphereSettings]
        classes = spoken_for(counts, options.fewest, options.share).nonzero().flatten()
        # as it is sent
        scatter = m.Weights({SCATTER: half.half().float()})
        return {MEANS.name: m.PrototypeSet(classes, means[classes].float()), SCATTER: scatter}

    def complete(self, received: m.Payload | None, directions: Tensor, labels: Tensor) -> m.Payload | None:
        """t q as a linear classifier of z^."""
        if received is None or DISCRIMINANT not in received:
            return None
        tensors = m.weights_of(received, DISCRIMINANT).tensors
        is_known = tensors[KNOWN] > 0
        if not bool(is_known.any()):
            # without a covariance, the client's own means are no classifier
            return None
        factor = inverse_factor(tensors[KNOWN].double())
        whitening = triangle(tensors[WHITENING][0].double(), directions.shape[1]).T * factor
        means = tensors[MU].double() * factor
        for label in labels.unique().tolist():
            if not is_known[label]:
                means[label] = whitening @ directions[labels == label].mean(dim=0)
                is_known[label] = True
        weight, bias = means @ whitening, -means.square().sum(dim=1) / 2
        # a term that is equal for all classes does not change the decision
        weight, bias = weight - weight[is_known].mean(dim=0), bias - bias[is_known].mean()
        class_scores = (directions @ weight.T + bias).masked_fill(~is_known, -torch.inf)
        temperature = choose_temperature(class_scores, labels, self.num_classes)
        classifier = {WEIGHT: is_known.unsqueeze(1) * temperature * weight, BIAS: is_known * temperature * bias}
        tensors = {KNOWN: is_known, **classifier}
        return {DISCRIMINANT: m.Weights({name: tensor.float() for name, tensor in tensors.items()})}

    def pooled(self, state: m.ClientState, z: Tensor, encoded: Tensor | None) -> Tensor | None:
        """The logarithmic opinion pool of both posteriors, (n, K); before the first message, the model's."""
        logits = exact(state.module.classify(z))
        if encoded is None:
            return log_softmax(logits.double(), dim=1)
        counts = torch.zeros(self.num_classes, dtype=torch.float64, device=encoded.device)
        if state.prototypes is not None and state.prototypes.counts is not None:
            counts[state.prototypes.labels] = state.prototypes.counts.double()
        return opinion_pool(logits, encoded, counts, state.pool_weight)


def spoken_for(counts: Tensor, fewest: int, share: float) -> Tensor:
    """The classes whose means a client sends, (K,) bool. The mean of a few samples nearly reveals them and would weigh
    too much; a client without larger classes sends its largest."""
    average = counts.sum() / (counts > 0).sum().clamp_min(1)
    enough = (counts >= fewest) & (counts >= share * average)
    return enough if bool(enough.any()) else (counts == counts.max()) & (counts > 0)


def scale_of(settings: m.Settings) -> float:
    """The factor of a scatter on the wire, so that its norm stays within a message's bound."""
    return min(SCALE, settings.max_prototype_norm / 2)


class Protosphere(PooledServer):
    objective = ProtosphereObjective
    remedy = "; a larger `protosphere.exchanges` includes more clients"

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse means outside the unit ball, and a scatter that no samples have."""
        means, half_scatter = m.prototypes_of(upload), m.weights_of(upload, SCATTER)
        scatter = self._restore_scatter(half_scatter)
        # each value is rounded to 11 bits, and the smallest to what 16 bits can distinguish from 0
        rounded = 2.0**-11 * float(scatter.norm()) + 2.0**-24 * self.dim / scale_of(self.settings)
        return refute_means(means) or refute_scatter(scatter, rounded)

    def read(self, partition: int, upload: m.Payload) -> Statistics:
        """m_ij, w_ij and n_i S_i."""
        means = m.prototypes_of(upload)
        samples = float(self.identities[partition].rows[0])
        weights = torch.full((len(means),), samples / len(means), dtype=torch.float64)
        return Statistics(means, weights, samples * self._restore_scatter(m.weights_of(upload, SCATTER)))

    def _restore_scatter(self, half_scatter: m.Weights) -> Tensor:
        """S_i from the half that was sent, (d, d) float64."""
        return from_half(half_scatter.tensors[SCATTER][0].double() / scale_of(self.settings))

    def classifier(self, pooled: Pooled) -> m.Payload:
        """A and A mu_j."""
        sums, weights = pooled.sums, pooled.weights
        bound = min(self.settings.max_prototype_norm, MOST)
        # one setting for both ends: without shrinkage, Sigma may have no inverse
        shrinkage = self.options[ProtosphereSettings].shrinkage or None
        covariance = covariance_of_sums(sums, weights, pooled.moment, shrinkage)
        lower = torch.linalg.cholesky(covariance)
        whitening = torch.linalg.solve_triangular(lower, torch.eye(self.dim, dtype=lower.dtype), upper=False)
        means = sums / weights.clamp_min(1e-300).unsqueeze(1) @ whitening.T
        tensors = within_bound({MU: means, WHITENING: to_half(whitening.T)}, weights > 0, bound)
        # as it is sent
        return {DISCRIMINANT: m.Weights({name: tensor.half().float() for name, tensor in tensors.items()})}


def _choose_exchange(options: m.Options) -> m.Exchange:
    disclosure = "how its samples' features vary around the means of their classes, of all classes together"
    scatter = m.Part("weights", SCATTER, dtype="float16", disclosure=disclosure)
    return m.Exchange((MEANS, scatter), (m.Part("weights", DISCRIMINANT, dtype="float16"),), DISCLOSURES, once=True)


METHOD = replace(
    ONE_EXCHANGE,
    server=Protosphere,
    objective=ProtosphereObjective,
    settings={"protosphere": ProtosphereSettings},
    exchange=_choose_exchange,
    inference=POOL,
    rules=(*m.RULES, RULE, POOL),
)
