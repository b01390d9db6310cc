"""FedORGP (Guo et al., 2025): the server trains global prototypes to be orthogonal to each other.

    server   P = F(E) as in FedTGP (strategies/trained_prototypes.py); on all uploaded (p_ij, j)
             L_OR = lambda_s (1 - s) + gamma d                                   (Eq. 5)
             s = mean cos(p_ij, P_j),  d = mean over k != j of |cos(p_ij, P_k)|  (Eq. 3, 4)
    client   L = CE(g(z), y) + lambda_c (1 - cos(z, P_y))                        (Eq. 8)
    predict  `classifier`

Departures. d runs over the classes that were ever reported, so that classes without samples have no effect; a sample
whose class has no global prototype yet gets only the cross-entropy. The authors' release now weights the terms by the
distance of other classes, and excludes outlying features from a client's prototypes; neither is in the paper or here.
The constants are those that the paper selects, (lambda_c, lambda_s, gamma) = (100, 1, 10) (section 5.8, Table 6); the
release's parser has 1 for each.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.losses import cosine_pull
from protosphere.prototypes.trainable import PrototypeLoss, orthogonality_loss
from protosphere.strategies.trained_prototypes import TrainedPrototypes


@m.method_settings
class FedORGPSettings:
    """`fedorgp.*`.

    Attributes:
        client_weight: λ_c, weight of the client's pull by cosine. Paper: 100.
        intra_weight: λ_s, weight of the similarity within a class. Paper: 1.
        inter_weight: gamma, weight of the similarity between classes. Paper: 10.
        server_epochs: server epochs over a round's uploads. Paper: 1.
        server_learning_rate: learning rate of the server's SGD. Paper: 0.01.
        server_batch_size: uploaded prototypes per batch. Paper: 32.
    """

    client_weight: m.NotNegative = 100.0
    intra_weight: m.NotNegative = 1.0
    inter_weight: m.NotNegative = 10.0
    server_epochs: m.AtLeastOne = 1
    server_learning_rate: m.Positive = 0.01
    server_batch_size: m.AtLeastOne = 32


class FedORGPObjective(m.Objective):
    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        if state.table is None:
            return plain
        pull = cosine_pull(plain.features, batch.labels, *state.table)
        return plain.plus("cosine-pull", pull, self.options[FedORGPSettings].client_weight)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        return m.local_prototypes(state)


class FedORGP(TrainedPrototypes):
    prefix, kind = "fedorgp", FedORGPSettings
    loss_name = "orthogonality_loss"

    def loss(self, sets: Sequence[m.PrototypeSet], present: Tensor) -> tuple[PrototypeLoss, dict[str, m.Figure]]:
        options = self.options[FedORGPSettings]
        loss = partial(orthogonality_loss, intra_weight=options.intra_weight, inter_weight=options.inter_weight)
        return loss, {}


METHOD = m.Method(
    server=FedORGP,
    objective=FedORGPObjective,
    settings={"fedorgp": FedORGPSettings},
    inference="classifier",
    releases=m.any_options,
)
