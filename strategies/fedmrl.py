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

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field
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

    shared_dim: Annotated[int, Field(ge=1)] = 128


class FedMRLObjective(CompanionObjective):
    kind = FedMRLSettings

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        small_model = self.second(model, min(self.options[FedMRLSettings].shared_dim, model.feature_dim))
        return Joined(model, small_model, m.derive(seed, "projection"))

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        joint = super().loss(state, batch, phase, round_number)
        small_model = state.module.companion
        companion_loss = cross_entropy(small_model.classify(joint.features[:, : small_model.feature_dim]), batch.labels)
        return m.Loss(
            joint.total + companion_loss, joint.parts | {"first-cross-entropy": companion_loss}, joint.features
        )


class FedMRL(MeanOfCompanions):
    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Warn if d' is less than was set: z has at most d values."""
        notices = super().check(num_classes, dim)
        width = self.options[FedMRLSettings].shared_dim
        if width <= dim:
            return notices
        notice = f"setting `fedmrl.shared-dim` is {width}, but `feature-dim` {dim}: the companion also has {dim}"
        return (*notices, notice)


METHOD = replace(
    AVERAGING,
    server=FedMRL,
    objective=FedMRLObjective,
    settings={"fedmrl": FedMRLSettings},
    exchange=companion,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
