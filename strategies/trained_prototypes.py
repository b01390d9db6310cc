"""Prototypes that the server trains on the uploads, shared by FedTGP and FedORGP.

    P = F(E): one embedding per class through Linear(d, d) -> ReLU -> Linear(d, d), kept across rounds

In each round, SGD trains the module on all uploaded (p_ij, j) with the method's loss, over the classes that were ever
reported; a class that is missing this round is sent as the module now computes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.models.optimiser import EagerSGD, optimiser_tensors, restore_optimiser
from protosphere.prototypes.trainable import PrototypeLoss, TrainablePrototypes, train_prototypes

PREFIX = "module/"


@dataclass(frozen=True)
class Training:
    """The server's training: passes over a round's uploads, batch size in uploads, and its SGD."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0


class TrainedPrototypes(m.ServerHalf):
    """Server half of such a method.

    Attributes:
        prefix: of its settings, and of the seeds of its training.
        loss_name: the name of its loss among the round's metrics.
    """

    prefix: ClassVar[str]
    loss_name: ClassVar[str]

    def training(self) -> Training:
        """The training parameters, from the method's settings."""
        raise NotImplementedError

    def loss(self, sets: Sequence[m.PrototypeSet], present: Tensor) -> tuple[PrototypeLoss, dict[str, m.Figure]]:
        """The loss of a round, and metrics for its line.

        Args:
            sets: the uploads.
            present: (K,) bool, the classes that were ever reported.
        """
        raise NotImplementedError

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Train for one round on all uploads."""
        training = self.training()
        module, optimiser = self._restore_trainee(state)
        sets = list(m.prototype_sets(uploads).values())
        vectors = torch.cat([prototypes.vectors for prototypes in sets])
        labels = torch.cat([prototypes.labels for prototypes in sets])
        present = state.get("present", torch.zeros(self.num_classes, dtype=torch.bool)).clone()
        present[labels] = True
        loss, figures = self.loss(sets, present)
        if len(labels):
            figures[self.loss_name] = train_prototypes(
                module,
                optimiser,
                vectors,
                labels,
                present,
                loss,
                epochs=training.epochs,
                batch_size=training.batch_size,
                generator=m.generator(self.settings.seed, "round", server_round, self.prefix),
            )
        with torch.no_grad():
            classes = present.nonzero().flatten()
            prototypes = m.PrototypeSet(classes, module()[classes])
        if not bool(prototypes.vectors.isfinite().all()):
            raise m.RunError(
                f"round {server_round}: the server's training of prototypes diverged; start a new run with a lower "
                f"`{self.prefix}.server-learning-rate`."
            )
        tensors = {f"{PREFIX}{name}": tensor for name, tensor in module.state_dict().items()}
        tensors |= optimiser_tensors(optimiser, "optimiser") | {"present": present}
        return m.Outcome(tensors, m.to_everyone(prototypes), figures)

    def _restore_trainee(self, state: m.State) -> tuple[TrainablePrototypes, EagerSGD]:
        """Module and optimiser as the last round left them, or in their initial state."""
        training = self.training()
        module = TrainablePrototypes(self.num_classes, self.dim, m.derive(self.settings.seed, self.prefix))
        optimiser = EagerSGD(module.parameters(), lr=training.learning_rate, momentum=training.momentum)
        if state:
            weights = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
            module.load_state_dict(weights)
            restore_optimiser(optimiser, state, "optimiser")
        return module, optimiser
