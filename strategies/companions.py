"""Base of methods whose clients share a second model, the companion, which a setting names (FML, FedMRL).

    client   its own model, of any architecture, and the companion, whose weights are exchanged
    server   sum_{i in S} w_i / |S|: the unweighted mean

The companion is initialised from the run's seed alone, so it is equal on all clients. Its name and size are reported
with the run's metrics.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator

from protosphere import method as m
from protosphere.core.errors import ModelError
from protosphere.models import build, model_names, told_name
from protosphere.strategies.weights import COMPANION, AveragedWeights, SharedObjective

# for methods that do not predict with what they receive
OWN_RULES = tuple(rule for rule in m.RULES if rule != "global-prototypes")


def _check_one_model(name: str) -> str:
    try:
        # without the path: a run does not name files of a site
        is_one_model = not name or (model_names(name) == (name,) and told_name(name) == name)
    except ModelError:
        is_one_model = False
    if not is_one_model:
        raise ValueError("should be the name of one model, of no family and no file (empty: the first of `models`)")
    return name


@m.method_settings
class CompanionSettings:
    """The settings that these methods share.

    Attributes:
        companion: the second model, the same on all clients; empty: the first of `models`.
    """

    companion: Annotated[str, AfterValidator(_check_one_model)] = ""


class CompanionObjective(SharedObjective):
    """Client half: the companion is exchanged.

    Attributes:
        kind: the class of the method's settings.
    """

    parts = (COMPANION,)
    kind: type[CompanionSettings]

    @property
    def companion(self) -> str:
        return self.options[self.kind].companion or model_names(self.settings.models)[0]

    def second(self, model: m.SplitModel, feature_dim: int) -> m.SplitModel:
        """Build the companion for a client's model, with its own feature width; equal to the bit on all clients."""
        activation = self.settings.feature_activation
        seed = self.shared_seed(COMPANION)
        return build(self.companion, model.input_shape, feature_dim, model.num_classes, seed, activation)


def companion_of(objective: m.Objective) -> str:
    """The name of the companion that an objective builds; "" for none."""
    return objective.companion if isinstance(objective, CompanionObjective) else ""


class MeanOfCompanions(AveragedWeights):
    """Server half: one group of all clients, equally weighted."""

    weighting = "uniform"

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that all clients have built the same companion."""
        notices = super().check(num_classes, dim)
        other = next((p for p in self.identities if self.group(p) != self.group(next(iter(self.identities)))), None)
        if other is not None:
            raise m.SettingError(
                f"setting `{self.settings.strategy}.companion`: client {other} has a companion with other tensors than "
                "the first client's; give every client the same version of this program and of the model."
            )
        return notices
