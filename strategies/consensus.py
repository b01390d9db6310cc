"""The consensus space that FedPAGR and FedProc share: its model, prediction by its prototypes, and seeded
directions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.models.heads import ConsensusModel
from protosphere.prototypes.losses import prototype_probabilities


def random_directions(num_classes: int, dim: int, seed: int, method: str) -> m.PrototypeSet:
    """One seeded random unit vector in d dimensions for each of K classes, used before any class is reported."""
    random = m.generator(seed, method, "prototypes")
    vectors = normalize(torch.randn(num_classes, dim, generator=random, dtype=torch.float64), dim=1)
    return m.PrototypeSet(torch.arange(num_classes), vectors.float())


class ConsensusObjective(m.Objective):
    """Client half: features are unit vectors z = Normalize(g(f(x))) (FedPAGR, Eq. 1).

    Attributes:
        kind: the method's settings, with `temperature` of the prototype logits and `dropout` of the projection head.
    """

    kind: type[Any]

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        """Put the consensus projection head on the extractor, and a classifier into the consensus space."""
        return ConsensusModel(model, seed, self.options[self.kind].dropout)

    def ensemble_probabilities(self, state: m.ClientState, z: Tensor) -> Tensor | None:
        """The class probabilities of the paper's ensemble, (n, d) -> (n, K): softmax of z P^T over the temperature;
        None before there is a prototype."""
        if state.table is None:
            return None
        return prototype_probabilities(z, *state.table, temperature=self.options[self.kind].temperature)
