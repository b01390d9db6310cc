"""FedPA (Jiang et al., 2024): a generator like FedGen's, which the server also pushes away from the global prototypes.

    client   from round 2:  CE + (b_G/B) alpha_r CE(g(G(y~)), y~) + beta_r mse(z, P_y)
             y~ uniform over the classes that G knows, b_G = 32; alpha_r = 25 * 0.98^(r-1),
             beta_r = max(0.15, 5 * 0.98^(r-1)); sends all weights and its prototypes p_ic
    server   G by Adam on
             alpha_r sum_i pi_iy CE(g_i(G(eps, y)), y) - 0.15 mse(G(eps, y), P_y)
             + exp(-1/b^2 sum over (a, b) of different classes of mse(eps_a, eps_b) mean|G_a - G_b|),  P the last
             round's, b = 32 rows, so that b^2 counts all pairs;
             then the mean of the weights by n_i, and P_c = the unweighted mean of p_ic
    predict  the received model: `received`

All clients have one architecture. pi_iy is 1 / |N_y in S|. G is FedGen's, with its default size.
The server's distance runs over samples whose class has a P; round 1 has none. The source is the authors' code.
Departures: it trains one batch per "local epoch", here E epochs; it sums P over training batches, here p_ic is measured
after training in eval mode; it weights P and pi by n_ic, here clients are equal; a class that no client reported keeps
its P, which is zero in that code.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.losses import diversity
from protosphere.strategies.class_vectors import CLASS_SUMS, CLASS_WEIGHTS, with_class_vectors
from protosphere.strategies.generator import DECAY, GeneratedBatch, GeneratorObjective, GeneratorServer
from protosphere.strategies.weights import AVERAGING, EXTRACTOR, GENERATOR, HEAD, Sums

# initial alpha and beta; the lower bound of beta, which is also the weight of the server's distance
ALPHA, BETA, APART = 25.0, 5.0, 0.15


@m.method_settings
class FedPASettings:
    """`fedpa.*`.

    Attributes:
        server_rate: learning rate of the server's Adam in round 1. Authors: 3e-4 on MNIST, else 1e-4.
        server_steps: server steps per round. Authors: 50.
    """

    server_rate: m.Positive = 3e-4
    server_steps: m.AtLeastOne = 50


class FedPAObjective(GeneratorObjective):
    parts = (EXTRACTOR, HEAD)

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        if state.received is None or state.table is None:
            return plain
        decay = DECAY ** (round_number - 1)
        generated = self.generated(state)
        distance = m.prototype_pull(plain.features, batch.labels, *state.table)
        augmented = plain.plus("generated-cross-entropy", generated, ALPHA * decay)
        return augmented.plus("prototype-distance", distance, max(APART, BETA * decay))

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        weights = super().upload(state, round_number)
        if weights is None or state.prototypes is None:
            return None
        return {**weights, m.PROTOTYPES.name: state.prototypes.without_counts()}


class FedPA(GeneratorServer):
    objective = FedPAObjective
    kind = FedPASettings
    one_architecture = True

    def holding(self, upload: m.Payload, identity: m.Identity) -> Tensor:
        """1 for each class of which the client has sent a prototype."""
        class_weights = torch.zeros(self.num_classes)
        class_weights[m.prototypes_of(upload).labels] = 1.0
        return class_weights

    def criterion(self, batch: GeneratedBatch, state: m.State, server_round: int) -> Tensor:
        loss = ALPHA * DECAY ** (server_round - 1) * batch.teacher_loss + diversity(
            batch.noise, batch.features, batch.labels
        )
        if not state:
            return loss
        return loss - APART * m.prototype_pull(
            batch.features, batch.labels, *m.prototypes_of_state(state).table(self.num_classes)
        )

    def contribution(self, upload: m.Payload, identity: m.Identity) -> Sums:
        prototypes, weights = m.prototypes_of(upload), self.holding(upload, identity).double()
        vectors, _ = prototypes.to(dtype=torch.float64).table(self.num_classes)
        share = {CLASS_SUMS: weights.unsqueeze(1) * vectors, CLASS_WEIGHTS: weights}
        return {**super().contribution(upload, identity), **share}

    def finish(self, totals: Mapping[int, Sums], state: m.State, server_round: int) -> m.Outcome:
        outcome = super().finish(totals, state, server_round)
        ((group, total),) = totals.items()
        weights = total[CLASS_WEIGHTS]
        classes = weights.nonzero().flatten()
        fresh = m.PrototypeSet(classes, (total[CLASS_SUMS][classes] / weights[classes].unsqueeze(1)).float())
        prototypes = m.fill_missing_classes(state, fresh)
        payload = {**outcome.downloads[group], m.PROTOTYPES.name: prototypes}
        return replace(outcome, state=m.as_state(prototypes), downloads={group: payload}, prototypes=prototypes)


def exchange(options: m.Options) -> m.Exchange:
    """Weights and prototypes in both directions, G down."""
    averaged = with_class_vectors(EXTRACTOR, HEAD)
    return m.Exchange(averaged.up, (*averaged.down, m.Part("weights", GENERATOR)))


METHOD = replace(
    AVERAGING,
    server=FedPA,
    objective=FedPAObjective,
    settings={"fedpa": FedPASettings},
    exchange=exchange,
    rules=(*m.RULES, m.RECEIVED),
    reads_prototypes=True,
)
