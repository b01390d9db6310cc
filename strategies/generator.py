"""The family of methods whose server trains a generator of features on the clients' heads (FedGen, FedPA).

    client   gets the averaged weights and G, which it runs in eval mode and never trains
    server   from G and Adam as the last round left them, before heads are averaged:
             min_G  sum_i pi_iy CE(g_i(G(eps, y)), y) + what the method adds, y uniform over the reported classes

pi_iy is a client's share in the holders of y in S. Of each head a copy stays in memory until the round is finished; all
else of the uploads is added up as it is read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from federation.seeds import generator as stream
from federation.wire.payloads import Identity, Parts, Payload
from models.generator import Generator
from models.optimiser_state import optimiser_tensors, restore_optimiser
from models.split import SplitModel
from prototypes.weights import Weights, flat, taken, unflat
from strategies.contract import ClientState, Outcome, State, Sums
from strategies.weights import (
    GENERATOR,
    HEAD,
    PREFIX,
    AveragedWeights,
    SharedObjective,
    drawn_alike,
    head_layout,
    refuse_other_layouts,
)

BATCH = 32  # of generated features, here and there
DECAY = 0.98  # a round, of the server's rate and of the weights of a client's terms
WEIGHT_DECAY = 0.01  # of the server's Adam
TEACHER, HELD = "teacher/", "held/"  # of a total: a client's head, and how much of each class it speaks for


class Drawn(NamedTuple):
    """A batch of the server's: noise (b, q), labels (b,), what G makes of them (b, d), and the teachers' loss."""

    noise: Tensor
    labels: Tensor
    features: Tensor
    taught: Tensor


class GeneratorObjective(SharedObjective):
    """Client half: G lies beside the model."""

    def new_generator(self, num_classes: int, dim: int) -> Generator:
        """G before it learns; a method knows its other sizes."""
        raise NotImplementedError(f"{type(self).__name__} does not say which generator it gets")

    def build(self, model: SplitModel, seed: int) -> nn.Module:
        """G as the server has it, too, before it has learnt."""
        module = super().build(model, seed)
        made = drawn_alike(
            self.settings.seed, GENERATOR, lambda: self.new_generator(self.num_classes, model.feature_dim)
        )
        module.generator = made.requires_grad_(False)
        return module

    def shared(self, module: nn.Module) -> dict[str, Weights]:
        """What travels both ways, and G, whose statistics always travel."""
        return {**super().shared(module), GENERATOR: of_generator(module.get_submodule(GENERATOR))}

    def receive(self, state: ClientState, received: Payload | None, round_number: int) -> None:
        """What came replaces the client's own; without a G that has learnt there is nothing to learn from it."""
        super().receive(state, received, round_number)
        state.received = received

    def generated(self, state: ClientState) -> Tensor:
        """(b_G / B) CE(g(G(y~)), y~), y~ uniform over the classes that G was trained on; a scalar."""
        made: Generator = state.module.generator.eval()
        labels = made.labels(BATCH)
        loss = cross_entropy(self.logits(state, made(made.noise(BATCH), labels)), labels)
        return BATCH / self.settings.batch_size * loss

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """The parts as training left them; G is the server's."""
        return Parts(super().shared(state.module))


class GeneratorServer(AveragedWeights):
    """Server half: the mean of the weights, and G."""

    rate: float
    steps: int

    def new_generator(self, num_classes: int, dim: int) -> Generator:
        """G before it learns, as on the clients."""
        raise NotImplementedError(f"{type(self).__name__} does not say which generator it trains")

    def criterion(self, drawn: Drawn, state: State, server_round: int) -> Tensor:
        """What a batch of G's is worth, to be minimised."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its generator learns")

    def holding(self, upload: Parts, identity: Identity) -> Tensor:
        """How much a client weighs in each class, (K,) float32, before the shares of a class are made to sum to 1."""
        held = torch.zeros(self.num_classes)
        held[list(identity.classes)] = 1
        return held

    def check(self, num_classes: int, dim: int) -> None:
        """Every client has the server's G, and a head that the server can run."""
        super().check(num_classes, dim)
        refuse_other_layouts(self, HEAD, head_layout(dim, num_classes))
        refuse_other_layouts(self, GENERATOR, of_generator(self.new_generator(num_classes, dim)).layout)

    def contribution(self, upload: Parts, identity: Identity) -> Sums:
        """To the mean; and its own head, a total by itself."""
        head = upload[HEAD]
        assert isinstance(head, Weights)
        own = {TEACHER: flat(head).float(), HELD: self.holding(upload, identity)}
        alone = {f"{name}{identity.partition}": tensor for name, tensor in own.items()}
        return {**super().contribution(upload, identity), **alone}

    def finish(self, totals: Mapping[int, Sums], state: State, server_round: int) -> Outcome:
        """The mean, and a G that has learnt of this round's heads."""
        averaged = super().finish(totals, state, server_round)
        made = drawn_alike(self.settings.seed, GENERATOR, lambda: self.new_generator(self.num_classes, self.dim))
        lowered = self.rate * DECAY ** (server_round - 1)
        optimiser = torch.optim.Adam(made.parameters(), lr=lowered, weight_decay=WEIGHT_DECAY)
        if state:
            made.load_state_dict({name: state[f"{GENERATOR}/{name}"] for name in made.state_dict()})
            restore_optimiser(optimiser, state, "optimiser")
        loss = self._train(made, optimiser, totals, state, server_round)
        kept = {f"{GENERATOR}/{name}": tensor for name, tensor in made.state_dict().items()}
        kept |= optimiser_tensors(optimiser, "optimiser")
        sent = of_generator(made)
        downloads: dict[int, Payload] = {
            group: Parts({**means.parts, GENERATOR: sent})
            for group, means in averaged.downloads.items()
            if isinstance(means, Parts)
        }
        figures = {**averaged.figures, "generator_loss": float(loss)}
        return Outcome(kept, downloads, figures, keeps=averaged.keeps)

    def _train(
        self,
        made: Generator,
        optimiser: torch.optim.Optimizer,
        totals: Mapping[int, Sums],
        state: State,
        server_round: int,
    ) -> Tensor:
        """Train G in place; the last step's loss."""
        own = {name: tensor for total in totals.values() for name, tensor in total.items()}
        layout = head_layout(self.dim, self.num_classes)
        heads = [unflat(own[name], layout).tensors for name in own if name.startswith(TEACHER)]
        biases, weights = (torch.stack([head[name] for head in heads]) for name, _ in layout)
        held = torch.stack([own[name] for name in own if name.startswith(HELD)])
        shares = held / held.sum(dim=0).clamp(min=1)
        reported = held.any(dim=0).nonzero().flatten()
        made.held[reported] = 1
        draw = stream(self.settings.seed, "round", server_round, GENERATOR)
        loss = torch.zeros(())
        for _ in range(self.steps):
            labels = reported[torch.randint(len(reported), (BATCH,), generator=draw)]
            noise = made.noise(BATCH, draw)
            features = made(noise, labels)
            logits = torch.einsum("bd,skd->sbk", features, weights) + biases.unsqueeze(1)
            each = cross_entropy(logits.flatten(0, 1), labels.repeat(len(heads)), reduction="none")
            taught = (each.view(len(heads), -1) * shares[:, labels]).sum(dim=0).mean()
            loss = self.criterion(Drawn(noise, labels, features, taught), state, server_round)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return loss.detach()


def of_generator(module: nn.Module) -> Weights:
    """A generator's floating tensors, by their names in a client's model."""
    tensors = {PREFIX[GENERATOR] + name: tensor for name, tensor in module.state_dict().items()}
    return taken(tensors, [name for name, tensor in tensors.items() if tensor.is_floating_point()])
