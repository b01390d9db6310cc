"""FedGen (Zhu et al., ICML 2021): the server trains a generator of features on the clients' heads; clients learn from
it.

    client   from round 2:
             CE + (b_G/B) alpha_r CE(g(G(y~)), y~) + beta_r KL(sg[softmax g(G(y))] || softmax g(f(x)))
             y~ uniform over the classes that G knows, b_G = 32; alpha_r = max(1e-4, alpha 0.98^(r-1)), beta_r likewise
             sends its head, or all of its weights
    server   G by Adam on
             sum_i pi_iy CE(g_i(G(eps, y)), y) + lambda_D exp(-mean_{a,b} mse(eps_a, eps_b) mean|G_a - G_b|)
             pi_iy = 1 / |N_y in S|; then the mean of the weights by n_i; sends both
    predict  the received head, or model: `received`

G: (eps uniform in [0, 1)^q, y) -> Linear, batch norm, ReLU, Linear -> R^d. Noise is uniform, as in the authors' code;
the paper has N(0, I). The KL runs over samples of classes that G knows; a weight of 0 drops its term, whatever the
lower bound. The server's learning rate decays by 0.98 per round. Departures: the authors weight teachers by n_iy, here
the holders of a class are equal, so no class counts are uploaded; their third server term has weight 0 in their code
and is not implemented. FL-bench takes every teacher's logits from the averaged model, and HtFLlib drops KL and
diversity.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax

from protosphere import method as m
from protosphere.models.generator import Generator
from protosphere.prototypes.losses import diversity
from protosphere.strategies.generator import DECAY, GeneratedBatch, GeneratorObjective, GeneratorServer
from protosphere.strategies.weights import AVERAGING, EXTRACTOR, GENERATOR, HEAD, both_ways

FLOOR = 1e-4  # lower bound of alpha_r and beta_r


@m.method_settings
class FedGenSettings:
    """`fedgen.*`.

    Attributes:
        share: averaged weights: the head, for any architecture (HtFLlib), or all, for one architecture (paper).
        alpha: weight of the cross-entropy on generated features. Paper: 10.
        beta: weight of the divergence from the head's predictions on generated features. Paper: 10; 1 on EMNIST.
        diversity: λ_D, weight of the server's diversity term. Paper: 1.
        noise_dim: q, dimension of the generator's noise. Authors: 32; 64 on CIFAR.
        hidden: h, width of the generator's hidden layer. Authors: 256; 512 on CIFAR.
        server_rate: learning rate of the server's Adam in round 1. Authors: 3e-4.
        server_steps: server steps per round. Authors: 50.
    """

    share: Literal["head", "all"] = "head"
    alpha: m.NotNegative = 10.0
    beta: m.NotNegative = 10.0
    diversity: m.NotNegative = 1.0
    noise_dim: m.AtLeastOne = 32
    hidden: m.AtLeastOne = 256
    server_rate: m.Positive = 3e-4
    server_steps: m.AtLeastOne = 50


class FedGenObjective(GeneratorObjective):
    @property
    def parts(self) -> Sequence[str]:
        return shared_parts(self.options)

    @staticmethod
    def new_generator(options: m.Options, num_classes: int, dim: int) -> Generator:
        """G of `fedgen.noise-dim` and `fedgen.hidden`."""
        return Generator(num_classes, dim, options[FedGenSettings].noise_dim, options[FedGenSettings].hidden)

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        if state.received is None:
            return plain
        options = self.options[FedGenSettings]
        generated = self.generated(state)
        kl = self._compute_divergence(state, batch.labels, plain.features)
        alpha, beta = _decayed(options.alpha, round_number), _decayed(options.beta, round_number)
        return plain.plus("generated-cross-entropy", generated, alpha).plus("divergence", kl, beta)

    def _compute_divergence(self, state: m.ClientState, labels: Tensor, z: Tensor) -> Tensor:
        """KL(sg[softmax g(G(y))] || softmax g(z)): the mean over samples whose class G knows."""
        generator: Generator = state.module.generator.eval()
        with torch.no_grad():
            probabilities = softmax(state.module.classify(generator(generator.noise(len(labels)), labels)), dim=1)
        divergences = kl_div(log_softmax(state.module.classify(z), dim=1), probabilities, reduction="none").sum(dim=1)
        is_known = generator.held[labels]
        return (is_known * divergences).sum() / is_known.sum().clamp(min=1)


class FedGen(GeneratorServer):
    objective = FedGenObjective
    kind = FedGenSettings

    def __init__(self, settings: m.Settings, options: m.Options):
        super().__init__(settings, options)
        self.one_architecture = options[FedGenSettings].share == "all"

    def criterion(self, batch: GeneratedBatch, state: m.State, server_round: int) -> Tensor:
        weight = self.options[FedGenSettings].diversity
        return batch.teacher_loss + weight * diversity(batch.noise, batch.features)


def _decayed(weight: float, round_number: int) -> float:
    """alpha_r or beta_r; 0 if the term is dropped."""
    return max(FLOOR, weight * DECAY ** (round_number - 1)) if weight else 0.0


def shared_parts(options: m.Options) -> Sequence[str]:
    """The parts that are exchanged in both directions."""
    return (HEAD,) if options[FedGenSettings].share == "head" else (EXTRACTOR, HEAD)


def exchange(options: m.Options) -> m.Exchange:
    """Weights in both directions, G down."""
    averaged = both_ways(*shared_parts(options))
    return m.Exchange(averaged.up, (*averaged.down, m.Part("weights", GENERATOR)))


METHOD = replace(
    AVERAGING, server=FedGen, objective=FedGenObjective, settings={"fedgen": FedGenSettings}, exchange=exchange
)
