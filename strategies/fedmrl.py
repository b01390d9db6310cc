"""FedMRL (Yi et al., 2024): a client's features combine those of its own model and of a small shared model.

    client   z = P([z', f(x)]), z' in R^d' the features of the companion, P: R^(d+d') -> R^d a private linear map
             L = CE(g(z), y) + CE(g'(z_1..d'), y), g' the companion's classifier; trained together, E epochs
             sends the companion
    server   w^{r+1} = sum_{i in S} w_i / |S|, of the companion alone
    predict  the classifier of z with the received companion: `received`

z_1..d' are the first d' values of z (a Matryoshka representation), and prototypes lie in the space of z. The unweighted
mean is HtFLlib's; the authors weight clients by sample counts. HtFLlib tests with the server's
companion, whose batch statistics are never updated; `share-buffers` average updates them.
"""

from dataclasses import replace

from torch import nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.companion import Joined
from protosphere.strategies.companions import CompanionObjective, CompanionSettings, MeanOfCompanions
from protosphere.strategies.weights import AVERAGING, companion


@m.method_settings
class FedMRLSettings(CompanionSettings):
    """`fedmrl.*`.

    Attributes:
        companion: the shared model; empty: the first of `models`.
        shared_dim: d', width of the shared model's features, at most `feature-dim`. HtFLlib: 128.
    """

    shared_dim: m.AtLeastOne = 128


class FedMRLObjective(CompanionObjective):
    kind = FedMRLSettings

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        small_model = self.second(model, min(self.options[FedMRLSettings].shared_dim, model.feature_dim))
        return Joined(model, small_model, m.derive(seed, "projection"))

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        joint = super().loss(state, batch, phase, round_number)
        small_model = state.module.companion
        companion_loss = cross_entropy(small_model.classify(joint.features[:, : small_model.feature_dim]), batch.labels)
        return joint.plus("first-cross-entropy", companion_loss)


METHOD = replace(
    AVERAGING,
    server=MeanOfCompanions,
    objective=FedMRLObjective,
    settings={"fedmrl": FedMRLSettings},
    exchange=companion,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
