"""FRAug (Chen et al., ICCV 2023): each client augments training with features of a shared generator G, which it adapts
to its own.

    client   f, g, G as received; Psi and the class means m_c (running, 0.3) private; per batch, in one step:
             f, g by  (1-k) CE(g(z), y) + k/2 [CE(g(z~_y), y) + CE(g(z~_y~), y~)],  k = min(1/2, e), e = exp(w (r-1-T))
                      z~_y = z + Psi(G(u, y), y),  z~_y~ = m_y~ + Psi(G(u, y~), y~),  y~ all classes in turn
             G by     CE(g(G(u, y~)), y~) - lambda_G D(G(u, y~), .)
             Psi by   mean over both kinds of z~ of  -entropy softmax g(z~) + lambda_Psi D'(z~, its real partner)
    server   sum_{i in S} n_i w_i / sum_{i in S} n_i  of f, g and G
    predict  the received model: `received`

D = mse to m_y~, D' = kernel MMD, as in the authors' code for digits; for PACS it exchanges the two, and mixes z~ with
its real partner. From that code: z~ has no gradient in the first line, where G and Psi are in eval mode, as G is in the
third; y~ continues where the last batch ended; m starts at zero and stays there for a class that the client does not
hold. Running statistics of f stay local (`share-buffers` own); G's are always exchanged. Departures: the authors step f
and g, then G, then Psi, with features of the updated model in eval mode; here one step follows the sum of the losses,
each with the other parts fixed, and z comes from the same forward pass. D is mse / (1 + mse): the mse is unbounded and
makes G diverge within some tens of rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, log_softmax, mse_loss, softmax

from protosphere import method as m
from protosphere.models.generator import ClassTurns, FeatureGenerator, FeatureTransformation
from protosphere.models.optimiser import EagerSGD
from protosphere.models.seeded import drawn
from protosphere.prototypes.losses import kernel_mmd
from protosphere.strategies.generator import of_generator
from protosphere.strategies.weights import (
    AVERAGING,
    EXTRACTOR,
    GENERATOR,
    HEAD,
    AveragedWeights,
    SharedObjective,
    both_ways,
    refuse_other_layouts,
)

MEANS_RATE = 0.3  # weight of the newest batch in m_c


@m.method_settings
class FRAugSettings:
    """`fraug.*`.

    Attributes:
        ramp: omega, how steeply the share of generated features rises. Authors: 0.002; 0.01 on PACS.
        lambda_g: weight of the distance to real features that the generator G maximises. Authors: 1; 10 on PACS.
        lambda_t: λ_Ψ, weight of the distance to real features that Psi minimises. Authors: 1.
        rate: learning rate of G and Psi. Authors: 0.05.
    """

    ramp: m.NotNegative = 0.002
    lambda_g: m.NotNegative = 1.0
    lambda_t: m.NotNegative = 1.0
    rate: m.Positive = 0.05


RATE = "fraug.rate"


class FRAugObjective(SharedObjective):
    parts = (EXTRACTOR, HEAD)

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        classes, dim = self.num_classes, model.feature_dim
        model.generator = drawn(self.shared_seed(GENERATOR), lambda: FeatureGenerator(classes, dim))
        model.transformation = drawn(self.shared_seed("transformation"), lambda: FeatureTransformation(classes, dim))
        model.turns = ClassTurns(classes, dim)
        return model

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        """Model and G; G's statistics are always exchanged."""
        return {**super().shared(module), GENERATOR: of_generator(module.get_submodule(GENERATOR))}

    def phases(self, state: m.ClientState, round_number: int) -> list[m.Phase]:
        """One phase; G and Psi have their own learning rate."""
        augmenter_ids = {
            id(p) for part in (state.module.generator, state.module.transformation) for p in part.parameters()
        }

        def optimiser(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            groups: list[dict[str, Any]] = [
                {"params": [p for p in parameters if id(p) not in augmenter_ids]},
                {"params": [p for p in parameters if id(p) in augmenter_ids], "lr": self.options[FRAugSettings].rate},
            ]
            settings = self.settings
            return EagerSGD(groups, settings.learning_rate, settings.momentum, settings.weight_decay)

        parameters = [p for p in state.module.parameters() if p.requires_grad]
        return [m.Phase("train", parameters, epochs=self.settings.local_epochs, optimiser=optimiser, rate=RATE)]

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        options, module = self.options[FRAugSettings], state.module
        plain = super().loss(state, batch, phase, round_number)
        z = plain.features.detach().to(module.turns.means.dtype)
        module.turns.remember(z, batch.labels, MEANS_RATE)
        dealt_labels = module.turns.deal(len(z))
        # the real partners of the generated features, of both kinds
        real, labels = torch.cat([z, module.turns.means[dealt_labels]]), torch.cat([batch.labels, dealt_labels])
        share = min(0.5, math.exp(options.ramp * (round_number - 1 - self.settings.rounds)))
        with torch.no_grad():
            features = real + module.transformation.eval()(module.generator.eval()(labels), labels)
        augmented = cross_entropy(module.classify(features), labels)
        model = (1 - share) * plain.total + share * augmented
        generator = self._compute_generator_loss(module, dealt_labels)
        transformation = self._compute_transformation_loss(module, real, labels)
        parts = {"augmented-cross-entropy": augmented, "generator": generator, "transformation": transformation}
        return m.Loss(model + generator + transformation, plain.parts | parts, plain.features)

    def _compute_generator_loss(self, module: Any, labels: Tensor) -> Tensor:
        features = module.generator.train()(labels)
        error = mse_loss(features, module.turns.means[labels])
        distance = self.options[FRAugSettings].lambda_g * (error / (1 + error))
        return cross_entropy(_apply_fixed(module.classifier, features), labels) - distance

    def _compute_transformation_loss(self, module: Any, real: Tensor, labels: Tensor) -> Tensor:
        """The loss of Psi: the mean over both kinds, each treated as its own batch."""
        losses, weight = [], self.options[FRAugSettings].lambda_t
        for partner, classes in zip(real.chunk(2), labels.chunk(2), strict=True):
            with torch.no_grad():
                generated = module.generator.eval()(classes)
            features = partner + module.transformation.train()(generated, classes)
            logits = _apply_fixed(module.classifier, features)
            entropy = -(softmax(logits, dim=1) * log_softmax(logits, dim=1)).sum(dim=1).mean()
            losses.append(weight * kernel_mmd(features, partner) - entropy)
        return torch.stack(losses).mean()


def _apply_fixed(module: nn.Module, z: Tensor) -> Tensor:
    """Apply a module to z without gradients for its parameters."""
    output: Tensor = functional_call(module, {name: p.detach() for name, p in module.named_parameters()}, (z,))
    return output


class FRAug(AveragedWeights):
    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that every client has the same G; warn if statistics are exchanged that should stay local."""
        notices = super().check(num_classes, dim)
        refuse_other_layouts(self, GENERATOR, of_generator(FeatureGenerator(num_classes, dim)).layout)
        lines = [line for identity in self.identities.values() for line in identity.layouts]
        if not any("running_" in line for line in lines if not line.startswith(GENERATOR)):
            return notices
        notice = (
            'running statistics of the models are averaged, but stay local in the paper: set `share-buffers` to "own"'
        )
        return (*notices, notice)


METHOD = replace(
    AVERAGING,
    server=FRAug,
    objective=FRAugObjective,
    settings={"fraug": FRAugSettings},
    exchange=lambda options: both_ways(EXTRACTOR, HEAD, GENERATOR),
    fixed_rounds=True,
)
