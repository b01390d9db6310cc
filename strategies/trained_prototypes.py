"""Prototypes that the server trains on the uploads, shared by FedTGP and FedORGP.

    P = F(E): one embedding per class through Linear(d, d) -> ReLU -> Linear(d, d), kept across rounds

In each round, SGD trains the module on all uploaded (p_ij, j) with the method's loss, over the classes that were ever
reported; a class that is missing this round is sent as the module now computes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.models.optimiser import EagerSGD
from protosphere.prototypes.trainable import PrototypeLoss, TrainablePrototypes, train_prototypes

PRESENT = "present"  # entry of the state beside the module's tensors: (K,) bool, the classes that were ever reported


class TrainedPrototypes(m.ServerHalf):
    """Server half of such a method.

    Attributes:
        prefix: of its settings, and of the seeds of its training.
        kind: its settings, with `server_epochs`, `server_batch_size` and `server_learning_rate`.
        loss_name: the name of its loss among the round's metrics.
    """

    prefix: ClassVar[str]
    kind: ClassVar[type[Any]]
    loss_name: ClassVar[str]

    def loss(self, sets: Sequence[m.PrototypeSet], present: Tensor) -> tuple[PrototypeLoss, dict[str, m.Figure]]:
        """The loss of a round, and metrics for its line.

        Args:
            sets: the uploads.
            present: (K,) bool, the classes that were ever reported.
        """
        raise NotImplementedError

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        options, seed = self.options[self.kind], self.settings.seed
        module = TrainablePrototypes(self.num_classes, self.dim, m.derive(seed, self.prefix))
        present = torch.zeros(self.num_classes, dtype=torch.bool)
        if state:
            module.load_state_dict({name: tensor for name, tensor in state.items() if name != PRESENT})
            present = state[PRESENT].clone()
        sets = list(m.prototype_sets(uploads).values())
        vectors = torch.cat([prototypes.vectors for prototypes in sets])
        labels = torch.cat([prototypes.labels for prototypes in sets])
        present[labels] = True
        loss, figures = self.loss(sets, present)
        if len(labels):
            figures[self.loss_name] = train_prototypes(
                module,
                EagerSGD(module.parameters(), lr=options.server_learning_rate),
                vectors,
                labels,
                present,
                loss,
                epochs=options.server_epochs,
                batch_size=options.server_batch_size,
                generator=m.generator(seed, "round", server_round, self.prefix),
            )
        with torch.no_grad():
            classes = present.nonzero().flatten()
            prototypes = m.PrototypeSet(classes, module()[classes])
        if not bool(prototypes.vectors.isfinite().all()):
            raise m.RunError(
                f"round {server_round}: the server's training of prototypes diverged; start a new run with a lower "
                f"`{self.prefix}.server-learning-rate`."
            )
        return m.Outcome(module.state_dict() | {PRESENT: present}, m.to_everyone(prototypes), figures)
