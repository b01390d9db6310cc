"""FedNH (Dai et al., AAAI 2023): a classifier of unit prototypes, initially spread out, which gradient steps do not
change.

    client   logits sigma z̄ W_c,  z̄ = z / ||z||; f and the scale sigma by CE, E epochs; sends both, and
             mu_ic = normalise(mean over D_ic of z̄)
    server   f and sigma: the unweighted mean
             W_c <- normalise(rho W_c + (1 - rho) normalise(sum_{i in N_c} mu_ic))
    predict  the received classifier: `received`

A class that no client reported keeps W_c. Departures: W starts with orthonormal rows (K <= d), the paper's optimum is a
regular simplex. The authors' code weights mu_ic by n_ic; here clients are equal, so no counts are uploaded. The
unweighted mean of f and sigma follows the authors' code.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.models.heads import SHORTEST, CosineClassifier
from protosphere.strategies.class_vectors import AveragedWithClassVectors, orthonormal, with_class_vectors
from protosphere.strategies.weights import AVERAGING, EXTRACTOR, SCALE, SharedObjective, Sums


@m.method_settings
class FedNHSettings:
    """`fednh.*`.

    Attributes:
        smoothing: ρ, share of the prototypes W that is kept in a round. Paper: 0.9.
        scale: initial sigma, the scale of the logits. Authors: 1 for CNNs, 20 for ResNets.
    """

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.9
    scale: m.Positive = 20.0


class FedNHObjective(SharedObjective):
    parts = (EXTRACTOR, SCALE)

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        vectors = orthonormal(self.num_classes, model.feature_dim, self.settings.seed)
        model.add_module("classifier", CosineClassifier(vectors, self.options[FedNHSettings].scale))
        return model

    def load(self, module: nn.Module, received: m.Payload | None) -> None:
        """Load f and sigma by name, and W, which float16 rounds slightly off the sphere."""
        super().load(module, received)
        if received is not None and m.PROTOTYPES.name in received:
            classifier = module.get_submodule("classifier")
            assert isinstance(classifier, CosineClassifier)
            classifier.prototypes.copy_(m.prototypes_of(received).on_sphere().vectors)

    def features(self, state: m.ClientState, inputs: Tensor) -> Tensor:
        """z̄, (b, d) unit vectors."""
        return normalize(super().features(state, inputs), dim=1, eps=SHORTEST)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """f, sigma and mu_ic."""
        if state.prototypes is None:
            return None
        return {**self.shared(state.module), m.PROTOTYPES.name: state.prototypes.on_sphere().without_counts()}


class FedNH(AveragedWithClassVectors):
    weighting = "uniform"

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        notices = super().check(num_classes, dim)
        if dim < num_classes:
            raise m.SettingError(
                f"setting `feature-dim` is {dim}, but `fednh` starts with orthogonal prototypes, which need as many "
                f"dimensions as the data have classes ({num_classes}); raise it."
            )
        return notices

    def start(self) -> Tensor:
        return orthonormal(self.num_classes, self.dim, self.settings.seed)

    def contribution(self, upload: m.Payload, identity: m.Identity) -> Sums:
        """Add up directions, whatever their lengths."""
        return super().contribution({**upload, m.PROTOTYPES.name: m.prototypes_of(upload).on_sphere()}, identity)

    def update_vectors(self, vectors: Tensor, sums: Tensor, weights: Tensor, total: Tensor) -> Tensor:
        """W_c; unchanged if no client reported the class or the reports cancel out."""
        rho = self.options[FedNHSettings].smoothing
        smoothed = normalize(rho * vectors + (1 - rho) * normalize(sums, dim=1), dim=1)
        return torch.where(sums.norm(dim=1, keepdim=True) > SHORTEST, smoothed, vectors)


METHOD = replace(
    AVERAGING,
    server=FedNH,
    objective=FedNHObjective,
    settings={"fednh": FedNHSettings},
    exchange=lambda options: with_class_vectors(EXTRACTOR, SCALE),
    rules=(*m.RULES, m.RECEIVED),
    reads_prototypes=True,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
