"""The consensus space that FedPAGR and FedProc share: its model, prediction by its prototypes, and seeded
directions."""

from typing import Protocol

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


class ConsensusOptions(Protocol):
    """The settings that both share: the temperature of the prototype logits, and the projection head's dropout."""

    temperature: float
    dropout: float


class ConsensusObjective(m.Objective):
    """Client half: features are unit vectors z = Normalize(g(f(x))) (FedPAGR, Eq. 1)."""

    options_type: type[ConsensusOptions]

    @property
    def consensus_options(self) -> ConsensusOptions:
        """The method's settings."""
        return self.options[self.options_type]

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        """Put the consensus projection head on the extractor, and a classifier into the consensus space."""
        return ConsensusModel(model, seed, self.consensus_options.dropout)

    def ensemble_probabilities(self, state: m.ClientState, z: Tensor) -> Tensor | None:
        """The class probabilities of the paper's ensemble, (n, d) -> (n, K): softmax of z P^T over the temperature;
        None before there is a prototype."""
        if state.table is None:
            return None
        return prototype_probabilities(z, *state.table, temperature=self.consensus_options.temperature)
