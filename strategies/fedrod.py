"""FedRoD (Chen, Chao, ICLR 2022): one body with a generic head, trained for all classes equally, and a personal head
for the client's own.

    client   f and the generic head h by the balanced softmax: CE of h(z) + gamma log n_ij over the classes it holds
             the personal head h_p by CE of sg[h(z)] + h_p(sg[z]); both at once, E epochs; sends f and h
    server   sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  h(z) + h_p(z): `received` with the received weights; `generic` is h(z) alone, `received-generic` the
             same with the received weights: the server's model, whose accuracy on all classes is the paper's G-FL

sg stops the gradient, n_ij never leaves the client, and h_p starts as a copy of h. FL-bench predicts with h_p alone and
trains f through it, unlike the paper's linear form. The paper's hypernetwork is not implemented.
"""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, SHARED_RULES, WholeObjective

PRIOR = "log-counts"  # kept for a round's training
GENERIC = "generic"


@m.method_settings
class FedRoDSettings:
    """`fedrod.*`.

    Attributes:
        gamma: weight of log n_ij in the balanced softmax; 0: none. Paper: 1.
    """

    gamma: m.NotNegative = 1.0


class FedRoDObjective(WholeObjective):
    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        model.personal = deepcopy(model.classifier)
        return model

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Take what was received, and keep log n_ij for the training that follows."""
        super().receive(state, received, round_number)
        state.received = {PRIOR: m.Weights({PRIOR: _compute_log_counts(state, self.num_classes)})}

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        z = self.features(state, batch.inputs)
        generic = state.module.classify(z)
        assert state.received is not None
        log_counts = m.weights_of(state.received, PRIOR).tensors[PRIOR]
        prior = self.options[FedRoDSettings].gamma * log_counts
        balanced = cross_entropy(generic + prior, batch.labels)
        personal = cross_entropy(generic.detach() + state.module.personal(z.detach()), batch.labels)
        return m.Loss(balanced + personal, {"cross-entropy": balanced, "personal-cross-entropy": personal}, z)

    def scores(self, state: m.ClientState, z: Tensor) -> dict[str, Tensor]:
        generic = state.module.classify(z)
        return {"classifier": generic + state.module.personal(z), GENERIC: generic}


def _compute_log_counts(state: m.ClientState, num_classes: int) -> Tensor:
    """log n_ij, (K,); the lowest value for a class that the client does not hold."""
    prototypes = state.prototypes
    assert prototypes is not None
    assert prototypes.counts is not None
    device = next(state.module.parameters()).device
    # float32 whatever the logits' type: 16-bit formats represent few counts exactly
    table = torch.full((num_classes,), torch.finfo(torch.float32).min / 2, device=device)
    table[prototypes.labels.to(device)] = prototypes.counts.to(device, torch.float32).log()
    return table


METHOD = replace(
    AVERAGING,
    objective=FedRoDObjective,
    settings={"fedrod": FedRoDSettings},
    rules=(*SHARED_RULES, GENERIC, f"{m.RECEIVED}-{GENERIC}"),
    reads_prototypes=True,
)
