"""Base of methods whose server trains a generator of features on the clients' heads (FedGen, FedPA).

    client   receives the averaged weights and G, which it runs in eval mode and never trains
    server   from G and Adam as the last round left them, before heads are averaged:
             min_G  sum_i pi_iy CE(g_i(G(eps, y)), y) + what the method adds, y uniform over the reported classes

pi_iy is 1 / |N_y in S|, the same for all holders of y.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.core.seeds import generator as stream
from protosphere.models.generator import Generator
from protosphere.models.optimiser import optimiser_tensors, restore_optimiser
from protosphere.models.seeded import drawn
from protosphere.prototypes.weights import taken
from protosphere.strategies.weights import (
    GENERATOR,
    HEAD,
    PREFIX,
    AveragedWeights,
    SharedObjective,
    head_layout,
    refuse_other_layouts,
    shared_seed,
)
from protosphere.wire.arrays import check_tensors
from protosphere.wire.checks import MessageError

BATCH = 32  # generated features per batch, on client and server
DECAY = 0.98  # decay per round of the server's learning rate and of the weights of a client's terms
WEIGHT_DECAY = 0.01  # weight decay of the server's Adam


class GeneratedBatch(NamedTuple):
    """A batch on the server: noise (b, q), labels (b,), the generated features (b, d), and the teachers' loss."""

    noise: Tensor
    labels: Tensor
    features: Tensor
    teacher_loss: Tensor


class GeneratorObjective(SharedObjective):
    """Client half: holds G next to the model."""

    @staticmethod
    def new_generator(options: m.Options, num_classes: int, dim: int) -> Generator:
        """G before training."""
        return Generator(num_classes, dim)

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        """Put the initial G, equal to the server's, next to the model."""
        module = super().build(model, seed)
        new = partial(self.new_generator, self.options, self.num_classes, model.feature_dim)
        generator = drawn(self.shared_seed(GENERATOR), new)
        module.generator = generator.requires_grad_(False)
        return module

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        return {**super().shared(module), GENERATOR: of_generator(module.get_submodule(GENERATOR))}

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Replace the client's weights by what was received; without a trained G, there is no term with G."""
        super().receive(state, received, round_number)
        state.received = received if received is not None and GENERATOR in received else None

    def generated(self, state: m.ClientState) -> Tensor:
        """(b_G / B) CE(g(G(y~)), y~) with y~ uniform over the classes that G was trained on; a scalar."""
        generator: Generator = state.module.generator.eval()
        labels = generator.labels(BATCH)
        loss = cross_entropy(state.module.classify(generator(generator.noise(BATCH), labels)), labels)
        return BATCH / self.settings.batch_size * loss

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        return super().shared(state.module)


class GeneratorServer(AveragedWeights):
    """Server half: the mean of the weights, and G.

    Attributes:
        objective: the client half, which knows G's sizes.
        kind: the method's settings, with `server_rate`, Adam's learning rate in round 1, and `server_steps` per round.
    """

    objective: type[GeneratorObjective]
    kind: type[Any]

    def criterion(self, batch: GeneratedBatch, state: m.State, server_round: int) -> Tensor:
        """The loss of a generated batch, to be minimised."""
        raise NotImplementedError(f"{type(self).__name__} does not define its generator's loss")

    def holding(self, upload: m.Payload, identity: m.Identity) -> Tensor:
        """The classes that a client has, (K,) float32: 1 or 0."""
        has_class = torch.zeros(self.num_classes)
        has_class[list(identity.classes)] = 1.0
        return has_class

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that every client has the server's G, and a head that the server can run."""
        notices = super().check(num_classes, dim)
        refuse_other_layouts(self, HEAD, head_layout(dim, num_classes))
        generator = self.objective.new_generator(self.options, num_classes, dim)
        refuse_other_layouts(self, GENERATOR, of_generator(generator).layout)
        return notices

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        averaged = super().aggregate(uploads, state, server_round)
        seed = shared_seed(self.settings.seed, GENERATOR)
        new = partial(self.objective.new_generator, self.options, self.num_classes, self.dim)
        generator = drawn(seed, new)
        rate = self.options[self.kind].server_rate * DECAY ** (server_round - 1)
        optimiser = torch.optim.Adam(generator.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
        if state:
            generator.load_state_dict({name: state[f"{GENERATOR}/{name}"] for name in generator.state_dict()})
            restore_optimiser(optimiser, state, "optimiser")
        loss = self._train(generator, optimiser, uploads, state, server_round)
        try:
            check_tensors(dict(of_generator(generator).tensors), self.settings.max_prototype_norm)
        except MessageError as error:
            raise m.RunError(
                f"round {server_round}: of the generator the {error}; start a new run with a lower "
                f"`{self.settings.strategy}.server-rate`."
            ) from None
        tensors = {f"{GENERATOR}/{name}": tensor for name, tensor in generator.state_dict().items()}
        tensors |= optimiser_tensors(optimiser, "optimiser")
        weights = of_generator(generator)
        downloads: dict[int, m.Payload] = {
            group: {**means, GENERATOR: weights} for group, means in averaged.downloads.items()
        }
        figures = {**averaged.figures, "generator_loss": float(loss)}
        return replace(averaged, state={**averaged.state, **tensors}, downloads=downloads, figures=figures)

    def _train(
        self,
        generator: Generator,
        optimiser: torch.optim.Optimizer,
        uploads: Mapping[int, m.Payload],
        state: m.State,
        server_round: int,
    ) -> Tensor:
        """Train G in place on the heads of the uploads; returns the last step's loss."""
        heads, holders = [], []
        for partition, upload in uploads.items():
            heads.append(m.weights_of(upload, HEAD).tensors)
            holders.append(self.holding(upload, self.identities[partition]))
        # of s heads: (s, K, d), (s, K), and which classes their clients have, (s, K)
        weights = torch.stack([head[PREFIX[HEAD] + "weight"] for head in heads])
        biases = torch.stack([head[PREFIX[HEAD] + "bias"] for head in heads])
        has_class = torch.stack(holders)
        shares = has_class / has_class.sum(dim=0).clamp(min=1)
        reported = has_class.any(dim=0).nonzero().flatten()
        generator.held[reported] = 1
        draw = stream(self.settings.seed, "round", server_round, GENERATOR)
        loss = torch.zeros(())
        for _ in range(self.options[self.kind].server_steps):
            labels = reported[torch.randint(len(reported), (BATCH,), generator=draw)]
            noise = generator.noise(BATCH, draw)
            features = generator(noise, labels)
            logits = torch.einsum("bd,skd->sbk", features, weights) + biases.unsqueeze(1)
            losses = cross_entropy(logits.flatten(0, 1), labels.repeat(len(shares)), reduction="none")
            teacher_loss = (losses.view(len(shares), -1) * shares[:, labels]).sum(dim=0).mean()
            loss = self.criterion(GeneratedBatch(noise, labels, features, teacher_loss), state, server_round)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return loss.detach()


def of_generator(module: nn.Module) -> m.Weights:
    """A generator's floating-point tensors, by their names in a client's model."""
    tensors = {PREFIX[GENERATOR] + name: tensor for name, tensor in module.state_dict().items()}
    return taken(tensors, [name for name, tensor in tensors.items() if tensor.is_floating_point()])
