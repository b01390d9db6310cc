"""FedTGP (Zhang et al., AAAI 2024): the server trains well-separated global prototypes instead of averaging.

    server   P = F(E): one embedding per class through Linear(d, d) -> ReLU -> Linear(d, d), kept across rounds
             C_j = mean over N_j of p_ij;  margin = min(max_j min_{k != j} ||C_j - C_k||, tau)
             on all uploaded (p_ij, j): cross-entropy of -(D + margin onehot(j)),  D_k = ||p_ij - P_k||
    client   L = CE(g(z), y) + lambda R(z, gamma P_y)
    predict  argmin_j ||z - p_ij||

Departures. The softmax runs over the classes that were ever reported, so that classes without samples have no effect; a
class that is missing this round is sent as the module now computes it. The margin has the unit of Euclidean distance.
By default, R is the mean squared error with lambda 1 (`prototype-loss`,
`prototype-weight`); the authors' script has lambda 10. gamma is 1; ProtoNorm's Table 5 tries 1.1 to 1.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.trainable import PrototypeLoss, adaptive_margin, collapsed_loss, margin_contrast
from protosphere.strategies.trained_prototypes import TrainedPrototypes


@m.method_settings
class FedTGPSettings:
    """`fedtgp.*`.

    Attributes:
        margin: tau, the largest margin, in units of Euclidean distance. Paper: 100.
        server_epochs: server epochs over a round's uploads. Paper: 100.
        server_learning_rate: learning rate of the server's SGD. Paper: 0.01.
        server_batch_size: uploaded prototypes per batch. Ours: 32; the authors' script: 10.
        gamma: scale of the targets, as `fedproto.gamma`.
    """

    margin: m.NotNegative = 100.0
    server_epochs: m.AtLeastOne = 100
    server_learning_rate: m.Positive = 0.01
    server_batch_size: m.AtLeastOne = 32
    gamma: m.Positive = 1.0


class FedTGPObjective(m.PullObjective):
    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """gamma P: the client, not the server, scales."""
        return m.scaled(super().targets(state, received), self.options[FedTGPSettings].gamma)


class FedTGP(TrainedPrototypes):
    prefix, kind = "fedtgp", FedTGPSettings
    loss_name = "contrastive_loss"

    def loss(self, sets: Sequence[m.PrototypeSet], present: Tensor) -> tuple[PrototypeLoss, dict[str, m.Figure]]:
        margin = adaptive_margin(m.aggregate(sets, "mean").vectors, self.options[FedTGPSettings].margin)
        figures: dict[str, m.Figure] = {"margin": margin, "collapsed_loss": collapsed_loss(int(present.sum()), margin)}
        return partial(margin_contrast, margin=margin), figures

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        outcome = super().aggregate(uploads, state, server_round)
        return replace(outcome, scales=(self.options[FedTGPSettings].gamma, 1.0))


METHOD = m.Method(server=FedTGP, objective=FedTGPObjective, settings={"fedtgp": FedTGPSettings}, releases=m.any_options)
