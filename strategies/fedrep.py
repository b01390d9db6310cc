"""FedRep (Collins et al., ICML 2021): a shared representation and a personal head, trained one after the other.

    client   phase `head`: the personal layers by CE for `fedrep.head-epochs`, with the base as received
             phase `body`: the base by CE for E epochs, with the personal layers as just trained; sends the base
    server   base = sum_{i in S} n_i base_i / sum_{i in S} n_i    (the authors' code; in the paper clients are equal)
    predict  the received base with the client's own head: `received`

The extractor is in training mode in both phases, as in all public code, so its running statistics change in both.
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, PREFIX, SharedObjective, base_of, both_ways

HEAD_PHASE, BODY_PHASE = "head", "body"


@m.method_settings
class FedRepSettings:
    """`fedrep.*`.

    Attributes:
        personal_layers: last layers that stay local (2: also the projection to d).
        head_epochs: epochs for the personal layers. Paper: 10 on CIFAR.
    """

    personal_layers: Annotated[int, Field(ge=1, le=2)] = 1
    head_epochs: m.AtLeastOne = 10


class FedRepObjective(SharedObjective):
    @property
    def parts(self) -> tuple[str, ...]:
        return (base_of(self.options[FedRepSettings].personal_layers),)

    def phases(self, state: m.ClientState, round_number: int) -> list[m.Phase]:
        named = [(name, p) for name, p in state.module.named_parameters() if p.requires_grad]
        base = [p for name, p in named if name.startswith(PREFIX[self.parts[0]])]
        personal = [p for name, p in named if not name.startswith(PREFIX[self.parts[0]])]
        head = m.Phase(HEAD_PHASE, personal, epochs=self.options[FedRepSettings].head_epochs)
        # a fully frozen extractor has nothing to train
        return [head, *([m.Phase(BODY_PHASE, base, epochs=self.settings.local_epochs)] if base else [])]

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        """CE; the classifier alone needs no gradient through the extractor."""
        with torch.set_grad_enabled(phase.name == BODY_PHASE or self.options[FedRepSettings].personal_layers > 1):
            z: Tensor = self.features(state, batch.inputs)
        loss = torch.nn.functional.cross_entropy(state.module.classify(z), batch.labels)
        return m.Loss(loss, {"cross-entropy": loss}, z)


METHOD = replace(
    AVERAGING,
    objective=FedRepObjective,
    settings={"fedrep": FedRepSettings},
    exchange=lambda options: both_ways(base_of(options[FedRepSettings].personal_layers)),
)
