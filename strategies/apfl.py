"""APFL (Deng et al., 2020): each client mixes its own weights with the shared weights; it learns the mixing share.

    client   w, the companion, from w^r by CE(w); v and alpha by CE at v' = alpha v + (1 - alpha) w, w without gradient:
             grad_v = alpha grad f(v'), grad_alpha = <v - w, grad f(v')>; all computed from the old values, E epochs
             sends w
    server   w^{r+1} = sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  the classifier of v' with w^{r+1}: `received`

alpha is projected onto [0, 1] after each step and has no weight decay. Departures: the authors' and FL-bench's code
mixes outputs and adds 0.02 alpha to its gradient, PFLlib trains v alone and mixes once a round; this file implements
the paper's mixture of weights. The mixture uses v's running statistics.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.companion import Mixture
from protosphere.models.optimiser import EagerSGD
from protosphere.strategies.weights import AVERAGING, COMPANION, AveragedCompanions, SharedObjective, companion


@m.method_settings
class APFLSettings:
    """`apfl.*`.

    Attributes:
        alpha: initial share of the client's own weights. FL-bench: 0.5.
        adaptive: learn this share. Paper: true.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True


class APFLObjective(SharedObjective):
    parts: Sequence[str] = (COMPANION,)

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        options = self.options[APFLSettings]
        return Mixture(model, options.alpha, options.adaptive)

    def phases(self, state: m.ClientState, round_number: int) -> list[m.Phase]:
        """One phase for all; alpha has no weight decay and stays in [0, 1]."""
        alpha = state.module.alpha

        def optimiser(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            groups: list[dict[str, Any]] = [{"params": [p for p in parameters if p is not alpha]}]
            if alpha.requires_grad:
                groups.append({"params": [alpha], "weight_decay": 0.0, "bounds": (0.0, 1.0)})
            settings = self.settings
            return EagerSGD(groups, settings.learning_rate, settings.momentum, settings.weight_decay)

        parameters = [p for p in state.module.parameters() if p.requires_grad]
        return [m.Phase("train", parameters, epochs=self.settings.local_epochs, optimiser=optimiser)]

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        mixture = super().loss(state, batch, phase, round_number)
        global_loss = cross_entropy(state.module.companion(batch.inputs), batch.labels)
        return mixture.plus("global-cross-entropy", global_loss)


METHOD = replace(
    AVERAGING, server=AveragedCompanions, objective=APFLObjective, settings={"apfl": APFLSettings}, exchange=companion
)
