"""FedTGP (Zhang et al., AAAI 2024): global prototypes that the server trains to lie apart, instead of averaging.

    server   P = F(E): an embedding a class, through Linear(d, d) -> ReLU -> Linear(d, d), kept across rounds
             C_j = mean over N_j of p_ij;  margin = min(max_j min_{k != j} ||C_j - C_k||, tau)
             on all uploaded (p_ij, j): cross-entropy of -(D + margin onehot(j)),  D_k = ||p_ij - P_k||
    client   L = CE(g(z), y) + lambda R(z, P_y)
    predict  argmin_j ||z - p_ij||

Departures. The softmax runs over the classes that were ever reported, so that nothing is learnt of a class that nobody
has; one that is missing this round is sent as the module now has it. The margin has the unit of Euclidean distance. The
server's momentum is ours (the paper has none); where it is set, it lives on across rounds as the module does.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from protosphere.core.seeds import derive, generator
from protosphere.core.settings import AtLeastOne, NotNegative, Positive, Share
from protosphere.models.optimiser import optimiser_tensors, restore_optimiser
from protosphere.prototypes.aggregation import aggregate
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.trainable import TrainablePrototypes, adaptive_margin, collapsed_loss, train_prototypes
from protosphere.record.round import RunError
from protosphere.strategies.contract import (
    Figure,
    Method,
    Outcome,
    PullObjective,
    ServerHalf,
    State,
    method_settings,
    prototype_sets,
    to_everyone,
)
from protosphere.strategies.release import any_options
from protosphere.wire.payloads import Payload


@method_settings
class FedTGPSettings:
    """`fedtgp.*`.

    Attributes:
        margin: tau, the largest margin, in units of Euclidean distance. Paper: 100.
        server_epochs: passes over a round's uploads. Paper: 100.
        server_learning_rate: of the server's SGD. Paper: 0.01.
        server_batch_size: uploaded prototypes a batch. Paper: 32.
        server_momentum: of the server's SGD. Paper: none.
    """

    margin: NotNegative = 100.0
    server_epochs: AtLeastOne = 100
    server_learning_rate: Positive = 0.01
    server_batch_size: AtLeastOne = 32
    server_momentum: Share = 0.0


class FedTGP(ServerHalf):
    """Server half: the trainable prototypes."""

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """One round of contrastive training on everything that was uploaded."""
        options = self.options[FedTGPSettings]
        module, optimiser = self._restore_trainee(state)
        sets = list(prototype_sets(uploads).values())
        vectors = torch.cat([prototypes.vectors for prototypes in sets])
        labels = torch.cat([prototypes.labels for prototypes in sets])
        present = state.get("present", torch.zeros(self.num_classes, dtype=torch.bool)).clone()
        present[labels] = True
        margin = adaptive_margin(aggregate(sets, "mean").vectors, options.margin)
        figures: dict[str, Figure] = {
            "margin": margin,
            "collapsed_loss": collapsed_loss(int(present.sum()), margin),
        }
        if len(labels):
            figures["contrastive_loss"] = train_prototypes(
                module,
                optimiser,
                vectors,
                labels,
                present,
                margin,
                epochs=options.server_epochs,
                batch_size=options.server_batch_size,
                generator=generator(self.settings.seed, "round", server_round, "fedtgp"),
            )
        with torch.no_grad():
            classes = present.nonzero().flatten()
            prototypes = PrototypeSet(classes, module()[classes])
        if not bool(prototypes.vectors.isfinite().all()):
            raise RunError(
                f"round {server_round}: the server's contrastive training diverged; start a new run with a lower "
                "`fedtgp.server-learning-rate`."
            )
        tensors = {f"module/{name}": tensor for name, tensor in module.state_dict().items()}
        tensors |= optimiser_tensors(optimiser, "optimiser") | {"present": present}
        return Outcome(tensors, to_everyone(prototypes), figures)

    def _restore_trainee(self, state: State) -> tuple[TrainablePrototypes, torch.optim.SGD]:
        """Module and optimiser as the last round left them, or as they start."""
        options = self.options[FedTGPSettings]
        module = TrainablePrototypes(self.num_classes, self.dim, derive(self.settings.seed, "fedtgp"))
        optimiser = torch.optim.SGD(
            module.parameters(), lr=options.server_learning_rate, momentum=options.server_momentum
        )
        if state:
            module.load_state_dict(_select_part(state, "module/"))
            restore_optimiser(optimiser, state, "optimiser")
        return module, optimiser


def _select_part(state: State, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


METHOD = Method(
    server=FedTGP,
    objective=PullObjective,
    settings={"fedtgp": FedTGPSettings},
    releases=any_options,
)
