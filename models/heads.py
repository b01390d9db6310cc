"""Client models around any SplitModel: FedPAGR's consensus head and anchored classifier, GFPL's two classifiers."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from protosphere.core.seeds import derive
from protosphere.models.seeded import drawn
from protosphere.models.split import SplitModel, WrappedModel
from protosphere.prototypes.prototype_set import PrototypeSet

# Features shorter than this are divided by it instead of their norm: no NaN, and no float16 underflow.
SHORTEST = 1e-6


def projection_head(dim: int, dropout: float = 0.1) -> nn.Sequential:
    """g of FedPAGR (section 3.2): Linear(d, 2d), LayerNorm, ReLU, Dropout, Linear(2d, d), LayerNorm; (n, d) -> (n, d).

    Args:
        dim: d.
        dropout: probability in [0, 1); the paper names none.
    """
    return nn.Sequential(
        OrderedDict(
            widen=nn.Linear(dim, 2 * dim),
            wide_norm=nn.LayerNorm(2 * dim),
            activation=nn.ReLU(),
            dropout=nn.Dropout(dropout),
            narrow=nn.Linear(2 * dim, dim),
            norm=nn.LayerNorm(dim),
        )
    )


class ConsensusModel(WrappedModel):
    """ẑ = Normalize(g(f(x))) in the consensus space (FedPAGR, Eq. 1), then W ẑ + b.

    It drops the SplitModel's classifier. Head and classifier are initialised from their own stream of `seed`, equally
    for all architectures; torch's global random state is unchanged.

    Args:
        model: the client's network, f and K; changed in place.
        seed: the model's.
        dropout: of the head, in [0, 1).
    """

    def __init__(self, model: SplitModel, seed: int, dropout: float = 0.1) -> None:
        super().__init__(model)
        del model.classifier
        self.head, self.classifier = drawn(
            derive(seed, "head"),
            lambda: (projection_head(self.feature_dim, dropout), nn.Linear(self.feature_dim, self.num_classes)),
        )

    def features(self, x: Tensor) -> Tensor:
        """ẑ: (n, *input_shape) float -> (n, d) unit rows; zero if g(f(x)) is zero."""
        return normalize(self.head(super().features(x)), dim=1, eps=SHORTEST)

    def classify(self, z: Tensor) -> Tensor:
        """W ẑ + b: (n, d) -> (n, K) logits."""
        logits: Tensor = self.classifier(z)
        return logits

    @torch.no_grad()
    def anchor(self, prototypes: PrototypeSet) -> None:
        """Overwrite W_c with the unit prototype of each class given, and b with 0 (FedPAGR, section 3.6), in place.

        Other classes' rows are unchanged. Immediately afterwards, the logits are cosines.

        Raises:
            ValueError: prototypes of another dimension than d, or a label of K or more.
        """
        if prototypes.dim != self.feature_dim:
            raise ValueError(
                f"Prototypes of {prototypes.dim} dimensions cannot anchor a classifier of {self.feature_dim}; "
                "every client and the server must use the same feature-dim."
            )
        weight = self.classifier.weight
        vectors, present = prototypes.on_sphere().to(weight.device, weight.dtype).table(self.num_classes)
        weight[present] = vectors[present]
        self.classifier.bias.zero_()


class CosineClassifier(nn.Module):
    """sigma z̄ W_c (FedNH): fixed unit prototypes per class, and a trained scale.

    Args:
        prototypes: W, (K, d) unit rows.
        scale: the initial sigma.
    """

    prototypes: Tensor

    def __init__(self, prototypes: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes.float())
        self.scale = nn.Parameter(torch.tensor([scale]))

    def forward(self, z: Tensor) -> Tensor:
        """(n, d) unit rows -> (n, K) logits."""
        return self.scale * (z @ self.prototypes.T)


class DualClassifierModel(WrappedModel):
    """f, its trainable classifier g, and a projection onto a fixed frame: h = Normalize(l(f(x))) (GFPL, Eq. 11).

    The projection is initialised from its own stream of `seed`; torch's random state is unchanged.

    Args:
        model: any SplitModel.
        frame: the fixed classifier's unit vectors, (K, d); they are no parameters and not part of the state.
        seed: the model's.
    """

    frame: Tensor

    def __init__(self, model: SplitModel, frame: Tensor, seed: int) -> None:
        super().__init__(model)
        self.projection = drawn(derive(seed, "head"), lambda: nn.Linear(self.feature_dim, self.feature_dim))
        self.register_buffer("frame", frame.float(), persistent=False)

    @property
    def classifier(self) -> nn.Module:
        """g, the trainable one."""
        return self.model.classifier

    def project(self, z: Tensor) -> Tensor:
        """h: (n, d) -> (n, d) unit rows; zero if l(z) is zero."""
        return normalize(self.projection(z), dim=1, eps=SHORTEST)
