"""FedRoD (Chen, Chao, ICLR 2022): one body, a generic head for all classes alike, a personal one for the client's own.

    client   f and the generic head h by the balanced softmax: CE of h(z) + gamma log n_ij over the classes it holds
             the personal head h_p by CE of sg[h(z)] + h_p(sg[z]); both at once, E epochs; sends f and h
    server   sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  h(z) + h_p(z): `received` with what came; `generic` is h(z) alone

sg stops the gradient, n_ij never leaves the client, h_p starts as a copy of h. FL-bench predicts with h_p alone and
trains f through it: not the paper's linear form. The paper's hypernetwork is not built.
"""

from copy import deepcopy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from federation.settings import RECEIVED
from models.split import SplitModel
from strategies.contract import Batch, ClientState, Loss, Method, Phase, method_settings
from strategies.weights import SHARED_RULES, AveragedWeights, WholeObjective, whole_model


@method_settings
class FedRoDSettings:
    """`fedrod.*`.

    Attributes:
        gamma: the weight of log n_ij in the balanced softmax; 0 is the plain one. Paper: 1.
    """

    gamma: Annotated[float, Field(ge=0)] = 1.0


class FedRoDObjective(WholeObjective):
    """Client half: the personal head stays."""

    def build(self, model: SplitModel, seed: int) -> nn.Module:
        """h_p beside h."""
        model.personal = deepcopy(model.classifier)
        return model

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """BSM(h(z), y) + CE(sg[h(z)] + h_p(sg[z]), y)."""
        z = self.features(state, batch.inputs)
        generic = state.module.classify(z)
        prior = self.options[FedRoDSettings].gamma * _log_counts(state, generic)
        balanced = cross_entropy(generic + prior, batch.labels)
        personal = cross_entropy(generic.detach() + state.module.personal(z.detach()), batch.labels)
        return Loss(balanced + personal, {"cross-entropy": balanced, "personal-cross-entropy": personal}, z)

    def logits(self, state: ClientState, z: Tensor) -> Tensor:
        """h(z) + h_p(z)."""
        logits: Tensor = state.module.classify(z) + state.module.personal(z)
        return logits

    def scores(self, state: ClientState, z: Tensor) -> dict[str, Tensor]:
        """`generic`: h(z)."""
        return {"generic": state.module.classify(z)}


def _log_counts(state: ClientState, logits: Tensor) -> Tensor:
    """log n_ij, (K,); as low as it goes for a class that the client does not hold."""
    own = state.prototypes
    assert own is not None
    assert own.counts is not None
    # float32 whatever the logits are: a 16-bit format holds few counts
    table = torch.full((logits.shape[1],), torch.finfo(torch.float32).min / 2, device=logits.device)
    table[own.labels.to(logits.device)] = own.counts.to(logits.device, torch.float32).log()
    return table


METHOD = Method(
    server=AveragedWeights,
    objective=FedRoDObjective,
    settings={"fedrod": FedRoDSettings},
    exchange=whole_model,
    inference=RECEIVED,
    rules=(*SHARED_RULES, "generic"),
)
