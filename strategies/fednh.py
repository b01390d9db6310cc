"""FedNH (Dai et al., AAAI 2023): a classifier of unit prototypes, initially spread out, which gradient steps do not
change.

    client   logits sigma z̄ W_c,  z̄ = z / ||z||; f and the scale sigma by CE, E epochs; sends both, and
             mu_ic = normalise(mean over D_ic of z̄)
    server   f and sigma: the unweighted mean; W_c <- normalise(rho W_c + (1 - rho) normalise(sum_i a_ic mu_ic))
    predict  the received classifier: `received`

A class that no client reported keeps W_c. W starts with orthonormal rows, or as a regular simplex, the optimum that the
paper asks for. Departures: a_ic is 1 / |N_c| by default, which uploads no counts; the authors' code has n_ic / sum n_ic
(`samples`). The unweighted mean of f and sigma follows the authors' code.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from protosphere import method as m
from protosphere.models.heads import SHORTEST, CosineClassifier
from protosphere.prototypes.alignment import align
from protosphere.strategies.class_vectors import AveragedWithClassVectors, orthonormal, with_class_vectors
from protosphere.strategies.weights import AVERAGING, EXTRACTOR, SCALE, SharedObjective, Sums


@m.method_settings
class FedNHSettings:
    """`fednh.*`.

    Attributes:
        smoothing: ρ, share of the prototypes W that is kept in a round. Paper: 0.9.
        scale: initial sigma, the scale of the logits. Authors: 1 for CNNs, 20 for ResNets.
        weighting: weights of clients in a class's prototype. Authors: samples.
        start: initial W: orthonormal rows (K <= d), or a regular simplex (K <= d + 1).
    """

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.9
    scale: m.Positive = 20.0
    weighting: Literal["uniform", "samples"] = "uniform"
    start: Literal["orthogonal", "simplex"] = "orthogonal"


def start(options: FedNHSettings, num_classes: int, dim: int, seed: int) -> Tensor:
    """W^1: (K, d) float64 unit vectors.

    Raises:
        SettingError: K is too large for d.
    """
    smallest_dim = num_classes if options.start == "orthogonal" else num_classes - 1
    if dim < smallest_dim:
        raise m.SettingError(
            f"`fednh.start` is {options.start}, which needs `feature-dim` of {smallest_dim} at least for {num_classes} "
            f"classes (it is {dim}); raise it."
        )
    if options.start == "orthogonal":
        return orthonormal(num_classes, dim, seed)
    random = torch.randn(num_classes, dim, generator=m.generator(seed, "class-vectors"), dtype=torch.float64)
    return align(random, "simplex", seed=m.derive(seed, "class-vectors", "alignment")).points


class FedNHObjective(SharedObjective):
    """Client half: f and sigma are exchanged, W is received."""

    parts = (EXTRACTOR, SCALE)

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        """Replace the linear classifier by W and sigma."""
        options = self.options[FedNHSettings]
        vectors = start(options, self.num_classes, model.feature_dim, self.settings.seed)
        model.add_module("classifier", CosineClassifier(vectors, options.scale))
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
        means = state.prototypes.on_sphere()
        counted = self.options[FedNHSettings].weighting == "samples"
        return {**self.shared(state.module), m.PROTOTYPES.name: means if counted else means.without_counts()}


class FedNH(AveragedWithClassVectors):
    """Server half."""

    @property
    def weighting(self) -> str:
        """Equal weights, as in the authors' code."""
        return "uniform"

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that W fits into d dimensions."""
        notices = super().check(num_classes, dim)
        start(self.options[FedNHSettings], num_classes, dim, self.settings.seed)
        return notices

    def start(self) -> Tensor:
        """The same as on the clients."""
        return start(self.options[FedNHSettings], self.num_classes, self.dim, self.settings.seed)

    def contribution(self, upload: m.Payload, identity: m.Identity) -> Sums:
        """Add up directions, whatever their lengths."""
        return super().contribution({**upload, m.PROTOTYPES.name: m.prototypes_of(upload).on_sphere()}, identity)

    def class_weights(self, prototypes: m.PrototypeSet, identity: m.Identity) -> Tensor:
        """1, or n_ic; a common factor does not change the direction of a sum."""
        counts = prototypes.counts
        return super().class_weights(prototypes, identity) if counts is None else counts.double()

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
    exchange=lambda options: with_class_vectors(EXTRACTOR, SCALE, counts=options[FedNHSettings].weighting == "samples"),
    rules=(*m.RULES, m.RECEIVED),
    reads_prototypes=True,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
