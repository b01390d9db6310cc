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
from protosphere.strategies.by_client import pack_parts, unpack_parts
from protosphere.strategies.encoder_space import CLASSIFIER, DISCLOSURES, linear_classifier
from protosphere.strategies.one_exchange import DOWN, OneExchange, OneExchangeObjective
from protosphere.strategies.release import upload_scale
from protosphere.strategies.statistics import refute_means


def exchange_of_means(fewest: int) -> m.Exchange:
    """Class means and counts go up, a linear classifier comes down."""
    return m.Exchange((m.Part("prototypes", counts=True, fewest=fewest),), (DOWN,), DISCLOSURES, once=True)


class MeansObjective(OneExchangeObjective):
    def summarise(self, features: Tensor, labels: Tensor) -> m.Payload:
        """m_kc and n_kc."""
        z, labels = self.sent_samples(features, labels)
        classes, owner, counts = labels.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(classes), z.shape[1], dtype=torch.float64).index_add_(0, owner, z)
        return {m.PROTOTYPES.name: m.PrototypeSet(classes, (sums / counts.unsqueeze(1)).float(), counts)}

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """Under `privacy`, the class means and counts of the release; otherwise the family's upload."""
        if state.encoded is not None or state.prototypes is None:
            return super().upload(state, round_number)
        if round_number > self.last_round(self.settings, self.options):
            return None
        return {m.PROTOTYPES.name: state.prototypes}


class MeansServer(OneExchange):
    """Server half: the means of all clients, and the method's classifier of them."""

    def weights(self, clients: Sequence[m.PrototypeSet], sums: Tensor, totals: Tensor) -> Tensor:
        """w_c of all classes, (K, d) float64; 0 for a class that no client has sent.

        Args:
            clients: the clients' means and counts.
            sums, totals: s_c (K, d) and N_c (K,).
        """
        raise NotImplementedError

    def totals(self, clients: Sequence[m.PrototypeSet]) -> tuple[Tensor, Tensor]:
        """s_c (K, d) and N_c (K,), float64; with a robust aggregation, s_c is N_c times the class's centre."""
        sums = torch.zeros(self.num_classes, self.dim, dtype=torch.float64)
        totals = torch.zeros(self.num_classes, dtype=torch.float64)
        for means in clients:
            assert means.counts is not None
            counts = means.counts.double()
            sums[means.labels] += counts.unsqueeze(1) * means.vectors.double()
            totals[means.labels] += counts
        if self.aggregation == "mean":
            return sums, totals
        labels = torch.cat([means.labels for means in clients])
        vectors = torch.cat([means.vectors for means in clients]).double()
        counts = torch.cat([means.counts for means in clients if means.counts is not None]).double()
        return totals.unsqueeze(1) * class_centres(labels, vectors, counts, self.num_classes, self.aggregation), totals

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse means of unit vectors outside the unit ball; those of a release are noisy and may lie there."""
        return "" if self.settings.privacy != "none" else refute_means(m.prototypes_of(upload))

    def learn(self, uploads: Mapping[int, m.Payload], state: m.State) -> tuple[m.Outcome, Tensor]:
        by_client = unpack_parts(m.PrototypeSet, state) | m.prototype_sets(uploads)
        scale = upload_scale(self.settings)
        # by ascending partition, so that the order of arrival has no effect
        clients = [means.with_vectors(means.vectors / scale) for _, means in sorted(by_client.items())]
        sums, counts = self.totals(clients)
        classes = counts.nonzero().flatten()
        # mu_c in the encoder's space
        means = (sums[classes] / counts[classes].unsqueeze(1)).float()
        prototypes = m.PrototypeSet(classes, means) if len(classes) else None
        weight, bound = self.weights(clients, sums, counts), self.settings.max_prototype_norm
        classifier = linear_classifier(weight, torch.zeros(self.num_classes), counts > 0, bound)
        downloads = {m.EVERYONE: {CLASSIFIER: classifier}}
        return m.Outcome(pack_parts(by_client), downloads, prototypes=prototypes), counts > 0
