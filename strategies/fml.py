"""FML (federated mutual learning; Shen et al., 2020): each client's own model and a shared model, the meme, teach each
other.

    client   p its own model's class probabilities, q those of the meme, the companion; trains both for E epochs by
             L = alpha CE_p + (1 - alpha) KL(sg[q] || p) + beta CE_q + (1 - beta) KL(sg[p] || q)
             sends the meme
    server   w^{r+1} = sum_{i in S} w_i / |S|, of the meme alone
    predict  the classifier of its own model: `classifier`

sg stops the gradient; KL is the mean over the batch of the sum over classes. Departures: HtFLlib also takes the mean
over classes (`fml.reduction` element), passes each KL's gradient to the other model, clips gradients at 10, and has
alpha = beta = 1 by default, which disables distillation.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.companion import WithCompanion
from protosphere.prototypes.losses import divergence
from protosphere.strategies.companions import OWN_RULES, CompanionObjective, CompanionSettings, MeanOfCompanions
from protosphere.strategies.weights import AVERAGING, companion

Share = Annotated[float, Field(ge=0, le=1)]


@m.method_settings
class FMLSettings(CompanionSettings):
    """`fml.*`.

    Attributes:
        companion: the shared model; empty: the first of `models`.
        alpha: share of the cross-entropy in the own model's loss. ProtoNorm's table: 0.5; HtFLlib: 1.
        beta: share of the cross-entropy in the shared model's loss. ProtoNorm's table: 0.5; HtFLlib: 1.
        reduction: a divergence's sum over classes (`batch`, paper) or mean (`element`, HtFLlib).
    """

    alpha: Share = 0.5
    beta: Share = 0.5
    reduction: Literal["batch", "element"] = "batch"


class FMLObjective(CompanionObjective):
    kind = FMLSettings

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        return WithCompanion(model, self.second(model, model.feature_dim))

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        options = self.options[FMLSettings]
        z = self.features(state, batch.inputs)
        model_logits, meme_logits = state.module.classify(z), state.module.companion(batch.inputs)
        parts = {
            "cross-entropy": cross_entropy(model_logits, batch.labels),
            "divergence": divergence(model_logits, meme_logits.detach(), options.reduction),
            "meme-cross-entropy": cross_entropy(meme_logits, batch.labels),
            "meme-divergence": divergence(meme_logits, model_logits.detach(), options.reduction),
        }
        shares = (options.alpha, 1 - options.alpha, options.beta, 1 - options.beta)
        total = sum((share * part for share, part in zip(shares, parts.values(), strict=True)), z.new_zeros(()))
        return m.Loss(total, parts, z)


class FML(MeanOfCompanions):
    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """Only clients that train get a download, because no inference rule uses it."""
        return super().download(partition, downloads, state, server_round, trains) if trains else None


METHOD = replace(
    AVERAGING,
    server=FML,
    objective=FMLObjective,
    settings={"fml": FMLSettings},
    exchange=companion,
    inference="classifier",
    rules=OWN_RULES,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
