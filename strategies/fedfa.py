"""FedFA (Zhou et al., 2023; feature anchors): features are pulled to one anchor per class, shared by all clients.

    client   from w^r by CE + lambda (1/K) sum_{c in batch} mean_{x in c} ||z - a_c||^2 + CE(g(a), 1..K), E epochs
             sends w_i and p_ic, the means of its features after training
    server   w by n_i;  a_c <- a_c + (1 - m^E) sum_{i in N_c} (n_i / sum_S n) (p_ic - a_c)
    predict  the received classifier: `received`

The last term, the calibration, moves only g: the authors take it as a second step after each batch, with Adam; the sum
is the same to first order. Initial anchors are unit vectors: orthonormal if they fit (K <= d; the authors use random
axes), else random. Momentum follows the authors: each epoch keeps the share m of a client's anchor, so a round keeps
m^E, and the server's step is the mean of the clients' anchors, for which only p_ic is sent. This is not the FedFA of
feature augmentation.

Departures. The authors' anchors move to the mean features of each training epoch, the last with the highest weight;
here they move to p_ic, measured after training. The authors' means over batches divide by all batches, which shrinks
rare classes. The source is the authors' code alone (the paper was not available).
"""

from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from protosphere import method as m
from protosphere.prototypes.losses import class_pull
from protosphere.strategies.class_vectors import (
    AveragedWithClassVectors,
    orthonormal,
    received_vectors,
    with_class_vectors,
)
from protosphere.strategies.weights import AVERAGING, EXTRACTOR, HEAD, WholeObjective


@m.method_settings
class FedFASettings:
    """`fedfa.*`.

    Attributes:
        anchor_weight: lambda, weight of the distance to the anchors. Authors: 0.1.
        momentum: m, share of an anchor kept per epoch. Authors: 0.5.
    """

    anchor_weight: m.NotNegative = 0.1
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.5


def start(num_classes: int, dim: int, seed: int) -> Tensor:
    """a^1, (K, d) float64 unit vectors."""
    if num_classes <= dim:
        return orthonormal(num_classes, dim, seed)
    return normalize(torch.randn(num_classes, dim, generator=m.generator(seed, "class-vectors"), dtype=torch.float64))


class FedFAObjective(WholeObjective):
    def targets(self, state: m.ClientState, received: Any) -> m.PrototypeSet:
        """a_c, from round 1 on."""
        return received_vectors(received, start(self.num_classes, self.settings.feature_dim, self.settings.seed))

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        assert state.table is not None
        anchors, _ = state.table
        pull = class_pull(plain.features, batch.labels, anchors)
        labels = torch.arange(len(anchors), device=anchors.device)
        calibration = cross_entropy(state.module.classify(anchors), labels)
        weight = self.options[FedFASettings].anchor_weight
        return plain.plus("anchor", pull, weight).plus("calibration", calibration)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        if state.prototypes is None:
            return None
        return {**self.shared(state.module), m.PROTOTYPES.name: state.prototypes.without_counts()}


class FedFA(AveragedWithClassVectors):
    def start(self) -> Tensor:
        return start(self.num_classes, self.dim, self.settings.seed)

    def update_vectors(self, vectors: Tensor, sums: Tensor, weights: Tensor, total: Tensor) -> Tensor:
        """Move anchors towards the reported means, by the share of samples of clients that hold the class."""
        rate = 1 - self.options[FedFASettings].momentum ** self.settings.local_epochs
        return vectors + rate * (sums - weights.unsqueeze(1) * vectors) / total


METHOD = replace(
    AVERAGING,
    server=FedFA,
    objective=FedFAObjective,
    settings={"fedfa": FedFASettings},
    exchange=lambda options: with_class_vectors(EXTRACTOR, HEAD),
    rules=(*m.RULES, m.RECEIVED),
    reads_prototypes=True,
)
