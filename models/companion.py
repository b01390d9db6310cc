"""A client's model together with a second one, its companion, which is shared with other clients or stands for a shared
one."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from protosphere.models.seeded import drawn
from protosphere.models.split import SplitModel, WrappedModel


class WithCompanion(WrappedModel):
    """v and w: the client's own model, which predicts, and its companion.

    Args:
        model: v, taken over.
        companion: w; by default a copy of v.
    """

    def __init__(self, model: SplitModel, companion: SplitModel | None = None) -> None:
        super().__init__(model)
        self.companion = deepcopy(model) if companion is None else companion


class Mixture(WithCompanion):
    """v and w of one architecture; the model with the mixed weights alpha v + (1 - alpha) w predicts.

    Gradients reach v and alpha, never w; running statistics are those of v. The caller keeps alpha in [0, 1] during
    training.

    Args:
        model: v, taken over; w is a copy of it.
        alpha: the initial share of v, in [0, 1].
        adaptive: whether alpha is a parameter.
    """

    def __init__(self, model: SplitModel, alpha: float, adaptive: bool) -> None:
        super().__init__(model)
        self.alpha = nn.Parameter(torch.tensor(alpha), requires_grad=adaptive)

    def features(self, x: Tensor) -> Tensor:
        """z of the mixture: (n, *input_shape) float -> (n, d)."""
        z: Tensor = functional_call(self.model.extractor, self._mix("extractor"), (x,))
        return torch.relu(z) if self.model.feature_activation == "relu" else z

    def classify(self, z: Tensor) -> Tensor:
        """(n, d) -> (n, K) logits of the mixture."""
        logits: Tensor = functional_call(self.model.classifier, self._mix("classifier"), (z,))
        return logits

    def _mix(self, part: str) -> dict[str, Tensor]:
        model_part, other = self.model.get_submodule(part), self.companion.get_submodule(part)
        constants = {name: p.detach() for name, p in other.named_parameters()}
        # no clamp here: whether its gradient at 0 and 1 is 0 depends on the version of torch
        return {name: self.alpha * p + (1 - self.alpha) * constants[name] for name, p in model_part.named_parameters()}


class Joined(WithCompanion):
    """v and w combined: the features of both go through a private linear map, whose output is classified (FedMRL).

    Args:
        model: v, taken over, with d features.
        companion: w, with d' features and its own classifier.
        seed: of the map.
    """

    def __init__(self, model: SplitModel, companion: SplitModel, seed: int) -> None:
        super().__init__(model, companion)
        self.projection = drawn(seed, lambda: nn.Linear(model.feature_dim + companion.feature_dim, model.feature_dim))

    def features(self, x: Tensor) -> Tensor:
        """z = P([z', f(x)]): (n, *input_shape) float -> (n, d), z' the features of w."""
        z: Tensor = self.projection(torch.cat([self.companion.features(x), self.model.features(x)], dim=1))
        return torch.relu(z) if self.model.feature_activation == "relu" else z
