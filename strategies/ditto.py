"""Ditto (Li et al., ICML 2021): a shared model by FedAvg, and a personal model that is kept near it.

    client   w, the companion, from w^r by CE, E epochs; sent
             v, personal, by CE + (lambda / 2) ||v - w^r||^2 over the parameters, E epochs
             (`ditto.personal-epochs`)
    server   w^{r+1} = sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  the classifier of v: `classifier`; `received` judges w^{r+1}

w^r is the received model (in round 1 the common initial model), not the one just trained. Public code defaults to
lambda = 0, which is `local`.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from torch import nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.companion import WithCompanion
from protosphere.strategies.weights import (
    AVERAGING,
    COMPANION,
    AveragedCompanions,
    SharedObjective,
    anchored,
    companion,
    distance,
    load,
)

GLOBAL = "global"


@m.method_settings
class DittoSettings:
    """`ditto.*`.

    Attributes:
        weight: λ, weight of the distance between the personal and the shared model. Authors: 1.
        personal_epochs: epochs of the personal model; 0: `local-epochs` (paper).
    """

    weight: m.NotNegative = 1.0
    personal_epochs: m.Count = 0


class DittoObjective(SharedObjective):
    parts: Sequence[str] = (COMPANION,)

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        return WithCompanion(model)

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Take w^r, and keep a copy for the distance."""
        super().receive(state, received, round_number)
        state.received = anchored(state.module.companion)

    def phases(self, state: m.ClientState, round_number: int) -> list[m.Phase]:
        shared, personal = (
            [p for p in module.parameters() if p.requires_grad]
            for module in (state.module.companion, state.module.model)
        )
        epochs = self.settings.local_epochs
        personal_epochs = self.options[DittoSettings].personal_epochs or epochs
        return [
            m.Phase(GLOBAL, shared, epochs=epochs, of_model=False),
            m.Phase("train", personal, epochs=personal_epochs),
        ]

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        if phase.name == GLOBAL:
            z = state.module.companion.features(batch.inputs)
            global_loss = cross_entropy(state.module.companion.classify(z), batch.labels)
            return m.Loss(global_loss, {"global-cross-entropy": global_loss}, z)
        plain = super().loss(state, batch, phase, round_number)
        weight = self.options[DittoSettings].weight / 2
        return plain.plus("proximal", distance(state.module.model, state.received), weight)

    def evaluation_state(self, state: m.ClientState, received: m.Payload | None) -> m.ClientState:
        """w as just received; before the first message, as the client left it."""
        module = deepcopy(state.module)
        load(module, received)
        return replace(state, module=module.companion)


METHOD = replace(
    AVERAGING,
    server=AveragedCompanions,
    objective=DittoObjective,
    settings={"ditto": DittoSettings},
    exchange=companion,
    inference="classifier",
)
