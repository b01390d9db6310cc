"""FedGH (Yi et al., ACM MM 2023): the server trains a shared head on the clients' prototypes.

    client   takes the head g; trains f_i and g by CE for E epochs; sends its prototypes p_ij
    server   g by CE of g(p_ij) and j over all (i, j) of the round: SGD, `fedgh.server-epochs` passes
    predict  the received g on the client's own features: `received`

Extractors may have any architecture. The server's head starts equal to the clients' and is kept across rounds. Its SGD
has learning rate 0.01, batch size 32 and no momentum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.optimiser import EagerSGD
from protosphere.models.seeded import drawn
from protosphere.strategies.weights import (
    AVERAGING,
    HEAD,
    PREFIX,
    SharedObjective,
    head_layout,
    refuse_other_layouts,
    shared_seed,
)

RATE, BATCH = 0.01, 32


@m.method_settings
class FedGHSettings:
    """`fedgh.*`.

    Attributes:
        server_epochs: server epochs over a round's prototypes. HtFLlib: 100.
    """

    server_epochs: m.AtLeastOne = 100


class FedGHObjective(SharedObjective):
    parts = (HEAD,)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        return m.local_prototypes(state)


class FedGH(m.ServerHalf):
    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        refuse_other_layouts(self, HEAD, head_layout(dim, num_classes))
        return ()

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        head = drawn(shared_seed(self.settings.seed, HEAD), lambda: nn.Linear(self.dim, self.num_classes))
        if state:
            head.load_state_dict(state)
        sets = list(m.prototype_sets(uploads).values())
        vectors = torch.cat([prototypes.vectors for prototypes in sets])
        labels = torch.cat([prototypes.labels for prototypes in sets])
        optimiser = EagerSGD(head.parameters(), lr=RATE)
        order = m.generator(self.settings.seed, "round", server_round, HEAD)
        total = torch.zeros(())
        for _ in range(self.options[FedGHSettings].server_epochs):
            total.zero_()
            for rows in torch.randperm(len(labels), generator=order).split(BATCH):
                loss = cross_entropy(head(vectors[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach() * len(rows)
        tensors = head.state_dict()
        weights = m.Weights({PREFIX[HEAD] + name: tensor for name, tensor in tensors.items()})
        return m.Outcome(tensors, {m.EVERYONE: {HEAD: weights}}, {"head_loss": float(total) / len(labels)})


METHOD = replace(
    AVERAGING,
    server=FedGH,
    objective=FedGHObjective,
    settings={"fedgh": FedGHSettings},
    exchange=lambda options: m.Exchange((m.PROTOTYPES,), (m.Part("weights", HEAD),)),
    reads_prototypes=True,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
