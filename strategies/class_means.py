"""One-exchange methods whose clients send only class means and class counts (FedNCM, FedCOF).

    client   m_kc = sum of z over its n_kc samples of class c / n_kc, and n_kc
    server   N_c = sum_k n_kc,  s_c = sum_k n_kc m_kc,  mu_c = s_c / N_c

A robust `aggregation` replaces mu_c by a robust centre (protosphere/prototypes/aggregation.py).

Under `privacy`, both come from a release: they are noisy, and cover the classes that exceed the noise.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.aggregation import class_centres
from protosphere.strategies.encoder_space import CLASSIFIER, DISCLOSURES, linear_classifier
from protosphere.strategies.one_exchange import (
    DOWN,
    FirstUploads,
    OneExchange,
    OneExchangeObjective,
    rounds_of_exchange,
)
from protosphere.strategies.release import upload_scale
from protosphere.strategies.statistics import refute_means


def exchange_of_means(fewest: int) -> m.Exchange:
    """Class means and counts go up, a linear classifier comes down."""
    return m.Exchange((m.Part("prototypes", counts=True, fewest=fewest),), (DOWN,), DISCLOSURES, once=True)


class MeansObjective(OneExchangeObjective):
    """Client half."""

    def summarise(self, features: Tensor, labels: Tensor, samples: int) -> m.Payload:
        """m_kc and n_kc."""
        classes, owner, counts = labels.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(classes), features.shape[1], dtype=torch.float64).index_add_(0, owner, features)
        return {m.PROTOTYPES.name: m.PrototypeSet(classes, (sums / counts.unsqueeze(1)).float(), counts)}

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """Under `privacy`, the class means and counts of the release; otherwise the family's upload."""
        if state.encoded is not None or state.prototypes is None:
            return super().upload(state, round_number)
        return {m.PROTOTYPES.name: state.prototypes} if round_number <= rounds_of_exchange(self.settings) else None


class MeansServer(OneExchange):
    """Server half: the means of all clients, and the method's classifier of them."""

    @property
    def aggregation(self) -> m.ClassAggregation:
        """How each class's means are aggregated."""
        raise NotImplementedError

    def weights(self, clients: Sequence[m.PrototypeSet]) -> Tensor:
        """w_c of all classes, (K, d) float64, from the clients' means and counts; 0 for a class that no client has
        sent."""
        raise NotImplementedError

    def totals(self, clients: Sequence[m.PrototypeSet]) -> tuple[Tensor, Tensor]:
        """s_c (K, d) and N_c (K,), float64."""
        return class_totals(clients, self.num_classes, self.dim, self.aggregation)

    def warnings(self, clients: Sequence[m.PrototypeSet]) -> tuple[str, ...]:
        """Warnings once every client that is going to send has sent."""
        return ()

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse means of unit vectors outside the unit ball; those of a release are noisy and may lie there."""
        if self.settings.privacy != "none":
            return ""
        return refute_means(m.prototypes_of(upload))

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Compute the classifier from all clients that have sent so far, each counted once."""
        first_uploads = FirstUploads.of(m.PrototypeSet, state)
        is_new = first_uploads.add(m.prototype_sets(uploads))
        clients = self._in_units(first_uploads)
        figures, warnings = {"heard": len(clients)}, self.unheard(first_uploads.by_client, server_round)
        if not is_new:
            return m.Outcome(state, {}, figures, warnings, keeps=True)
        sums, counts = self.totals(clients)
        classes = counts.nonzero().flatten()
        # mu_c in the encoder's space
        means = (sums[classes] / counts[classes].unsqueeze(1)).float()
        prototypes = m.PrototypeSet(classes, means) if len(classes) else None
        if self.ends(server_round):
            warnings += self.warnings(clients) + self.unknown(counts > 0)
        weight, bound = self.weights(clients), self.settings.max_prototype_norm
        classifier = linear_classifier(weight, torch.zeros(self.num_classes), counts > 0, bound)
        downloads = {m.EVERYONE: {CLASSIFIER: classifier}}
        return m.Outcome(first_uploads.as_state(), downloads, figures, warnings, prototypes=prototypes)

    def _in_units(self, first_uploads: FirstUploads[m.PrototypeSet]) -> list[m.PrototypeSet]:
        """Means of unit vectors, by ascending partition."""
        scale = upload_scale(self.settings)
        return [means.with_vectors(means.vectors / scale) for means in first_uploads.parts.values()]


def class_totals(
    clients: Sequence[m.PrototypeSet], num_classes: int, dim: int, how: m.ClassAggregation = "mean"
) -> tuple[Tensor, Tensor]:
    """s_c (K, d) and N_c (K,), float64; with a robust `how`, s_c is N_c times the class's centre."""
    sums, totals = torch.zeros(num_classes, dim, dtype=torch.float64), torch.zeros(num_classes, dtype=torch.float64)
    for means in clients:
        assert means.counts is not None
        counts = means.counts.double()
        sums[means.labels] += counts.unsqueeze(1) * means.vectors.double()
        totals[means.labels] += counts
    if how != "mean" and clients:
        labels = torch.cat([means.labels for means in clients])
        vectors = torch.cat([means.vectors for means in clients]).double()
        counts = torch.cat([means.counts for means in clients if means.counts is not None]).double()
        sums = totals.unsqueeze(1) * class_centres(labels, vectors, counts, num_classes, how)
    return sums, totals
