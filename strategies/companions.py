"""The family of methods whose clients share a second model that a setting names, the same on all of them (FML, FedMRL).

    client   its own model, of any architecture, beside the companion; the companion's weights travel
    server   sum_{i in S} w_i / |S|: the plain mean, unless a method weighs otherwise

The companion is drawn from the run's seed alone, so it starts alike everywhere. Its name and size stand beside every
figure of a run.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator

from protosphere import method as m
from protosphere.core.errors import ModelError
from protosphere.models import build, model_names, told_name
from protosphere.strategies.weights import COMPANION, AveragedWeights, SharedObjective

OWN_RULES = tuple(rule for rule in m.RULES if rule != "global-prototypes")  # where what comes down does not predict


def _check_one_model(name: str) -> str:
    try:
        # of no path: a run names files of no site
        is_one_model = not name or (model_names(name) == (name,) and told_name(name) == name)
    except ModelError:
        is_one_model = False
    if not is_one_model:
        raise ValueError("should be the name of one model, of no family and no file (empty: the first of `models`)")
    return name


@m.method_settings
class CompanionSettings:
    """What these methods' settings begin with.

    Attributes:
        companion: the second model, the same on all clients; empty: the first of `models`.
    """

    companion: Annotated[str, AfterValidator(_check_one_model)] = ""


class CompanionObjective(SharedObjective):
    """Client half: the companion travels.

    Attributes:
        kind: the method's settings.
    """

    parts = (COMPANION,)
    kind: type[CompanionSettings]

    @property
    def companion(self) -> str:
        """By the method's setting."""
        return self.options[self.kind].companion or model_names(self.settings.models)[0]

    def second(self, model: m.SplitModel, feature_dim: int) -> m.SplitModel:
        """The companion of a client's model, of features of a width of its own; the same on all clients to the bit."""
        activation = self.settings.feature_activation
        seed = self.shared_seed(COMPANION)
        return build(self.companion, model.input_shape, feature_dim, model.num_classes, seed, activation)


def companion_of(objective: m.Objective) -> str:
    """The name of the second model that an objective puts beside the client's, the same on all; "" for none."""
    return objective.companion if isinstance(objective, CompanionObjective) else ""


class MeanOfCompanions(AveragedWeights):
    """Server half: one group of all clients, in which each counts the same unless the method says otherwise."""

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """All clients have to have built the same companion."""
        notices = super().check(num_classes, dim)
        other = next((p for p in self.identities if self.group(p) != self.group(next(iter(self.identities)))), None)
        if other is not None:
            raise m.SettingError(
                f"setting `{self.settings.strategy}.companion`: client {other} has built another companion than the "
                "first client, with other tensors; give every client the same version of this program and the model."
            )
        return notices

    @property
    def weighting(self) -> str:
        """Whatever the numbers of rows."""
        return "uniform"
