"""FedGen and FedPA: limits, a client's loss and the server's by loops, and the life of the generator."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere.core.seeds import generator as stream
from protosphere.models.generator import Generator
from protosphere.models.seeded import drawn
from protosphere.models.split import SplitModel
from protosphere.prototypes.losses import diversity
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.strategies.contract import Batch, ClientState
from protosphere.strategies.weights import shared_seed
from protosphere.wire.payloads import Identity
from tests.strategies.kin import halves_of as both_halves
from tests.strategies.kin import lines_of_layouts
from tests.strategies.sets import same_state

K, D, Q = 4, 3, 2
SIZES = {"noise-dim": Q, "hidden": 5}
HELD = {0: (0, 1), 1: (1, 3), 2: (1,)}


def halves_of(name, **settings):
    own = {f"{name}.{key}": value for key, value in ((SIZES if name == "fedgen" else {}) | settings).items()}
    return both_halves(name, own, K, D)


def client(objective, seed=1):
    torch.manual_seed(seed)
    return ClientState(objective.build(SplitModel(nn.Linear(2, D), D, K), 7))


def numbers(name="fedgen", **settings):
    """A server that knows its clients, and what they upload."""
    server, objective = halves_of(name, **settings)
    identities, uploads = {}, {}
    for partition, held in HELD.items():
        random = torch.Generator().manual_seed(partition)
        state = client(objective)
        with torch.no_grad():
            for p in state.module.classifier.parameters():
                p.add_(torch.randn(p.shape, generator=random))
        state.prototypes = PrototypeSet(torch.tensor(held), torch.randn(len(held), D, generator=random))
        uploads[partition] = objective.upload(state, 1)
        identities[partition] = Identity(
            partition,
            3,
            "net",
            classes=held,
            rows=(10 + partition, 0, 0),
            layouts=lines_of_layouts(objective.shared(state.module)),
        )
    server.meet(K, D, identities)
    return server, uploads


def taught(objective, known=(0, 2), number=3):
    """A client that has received a generator which knows some classes."""
    state = client(objective)
    shared = objective.shared(state.module)
    tensors = dict(shared["generator"].tensors)
    tensors["generator.held"] = torch.zeros(K).index_fill_(0, torch.tensor(known), 1.0)
    tensors["generator.network.1.running_var"] = torch.full((5,), 0.3)
    objective.receive(state, {**shared, "generator": Weights(tensors)}, number)
    state.module.train()
    return state


@pytest.mark.parametrize("labels", [(0, 1, 2, 1, 0), (1, 3, 1)])
def test_a_client_s_loss_adds_generated_features_and_the_divergence_from_them(labels):
    """With the noise and classes that the process's generator gives, which are drawn anew for each term."""
    _, objective = halves_of("fedgen", alpha=3.0, beta=2.0)
    state = taught(objective)
    batch = Batch(torch.randn(len(labels), 2), torch.tensor(labels))
    torch.manual_seed(11)
    loss = objective.loss(state, batch, objective.phases(state, 3)[0], 3)

    made, head = state.module.generator.eval(), state.module.classifier
    torch.manual_seed(11)
    # as many as the run's batch size, of classes that it knows
    drawn = made.labels(32)
    assert set(drawn.tolist()) == {0, 2}
    generated = cross_entropy(head(made(made.noise(32), drawn)), drawn)
    teachers = head(made(made.noise(len(labels)), batch.labels)).softmax(dim=1)
    students = head(state.module.features(batch.inputs)).softmax(dim=1)
    known = torch.isin(batch.labels, torch.tensor([0, 2]))
    apart = (teachers * (teachers / students).log()).sum(dim=1)[known]
    divergence = apart.mean() if len(apart) else torch.tensor(0.0)
    own = cross_entropy(head(state.module.features(batch.inputs)), batch.labels)
    shrunk = 0.98**2
    torch.testing.assert_close(loss.parts["divergence"], divergence, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(loss.parts["generated-cross-entropy"], generated)
    torch.testing.assert_close(loss.total, own + 3 * shrunk * generated + 2 * shrunk * divergence)
    # they stop at a floor, and before a generator came there are none
    late = objective.loss(state, batch, objective.phases(state, 900)[0], 900)
    more = late.parts["generated-cross-entropy"] + late.parts["divergence"]
    torch.testing.assert_close(late.total, late.parts["cross-entropy"] + 1e-4 * more)
    objective.receive(state, None, 1)
    assert set(objective.loss(state, batch, objective.phases(state, 1)[0], 1).parts) == {"cross-entropy"}


def test_a_client_s_training_moves_nothing_of_the_generator_and_teaches_the_head():
    _, objective = halves_of("fedgen", beta=0.0)
    state = taught(objective)
    (phase,) = objective.phases(state, 3)
    loss = objective.loss(state, Batch(torch.randn(3, 2), torch.tensor([0, 2, 2])), phase, 3)

    loss.parts["generated-cross-entropy"].backward()

    moved = {name for name, p in state.module.named_parameters() if p.grad is not None}
    assert moved == {"classifier.weight", "classifier.bias"}
    assert not {id(p) for p in state.module.generator.parameters()} & {id(p) for p in phase.parameters}


# --- the server -------------------------------------------------------------------------------------------------


def teachers_loss(uploads, features, labels):
    """The mean over a batch of the mean loss of each class's teachers."""
    total = 0.0
    for z, label in zip(features, labels, strict=True):
        teachers = [p for p, held in HELD.items() if int(label) in held]
        for p in teachers:
            head = uploads[p]["head"].tensors
            logits = z @ head["classifier.weight"].T + head["classifier.bias"]
            total += float(cross_entropy(logits, label)) / len(teachers) / len(labels)
    return total


def test_the_generator_s_loss_is_that_of_loops():
    """Each class by the heads that hold it; class 2 has no teacher and is never drawn. The diversity is held against
    loops below."""
    server, uploads = numbers(**{"server-steps": 1, "diversity": 0.5})
    loss = server.aggregate(uploads, {}, 2).figures["generator_loss"]
    draw = stream(0, "round", 2, "generator")
    made = drawn(shared_seed(0, "generator"), lambda: Generator(K, D, Q, 5))
    labels = torch.tensor([0, 1, 3])[torch.randint(3, (32,), generator=draw)]
    noise = torch.rand(32, Q, generator=draw)
    features = made(noise, labels).detach()
    total = teachers_loss(uploads, features, labels)
    assert loss == pytest.approx(total + 0.5 * float(diversity(noise, features)), rel=1e-5)


def test_it_lives_on_across_rounds_with_its_optimiser_at_a_falling_rate():
    server, uploads = numbers(**{"server-steps": 1, "diversity": 0.0})
    first = server.aggregate({0: uploads[0]}, {}, 1)
    before = {name: tensor.clone() for name, tensor in first.state.items()}
    second = server.aggregate({1: uploads[1]}, first.state, 2)
    assert same_state(first.state, before), "a round that fails is tried again from it"
    # what one of two rounds has taught is not forgotten
    assert second.state["generator/held"].tolist() == [1, 1, 0, 1]
    assert float(second.state["optimiser/0/step"]) == 2
    # Adam's first step is its rate, whatever the gradient
    name, start = "network.0.bias", drawn(shared_seed(0, "generator"), lambda: Generator(K, D, Q, 5)).state_dict()
    for number in (1, 40):
        moved = server.aggregate({0: uploads[0]}, {}, number).state[f"generator/{name}"] - start[name]
        assert float(moved.abs().max()) == pytest.approx(3e-4 * 0.98 ** (number - 1), rel=0.01)


# --- FedPA ------------------------------------------------------------------------------------------------------


def test_fedpa_s_server_by_loops():
    """Two rounds of one step, the second away from the prototypes of the first; class 3 has one in the first alone."""
    server, uploads = numbers("fedpa", **{"server-steps": 1})
    first = server.aggregate(uploads, {}, 1)
    prototypes = first.downloads[0]["prototypes"]
    assert prototypes.counts is None
    for label, vector in zip(prototypes.labels.tolist(), prototypes.vectors, strict=True):
        of = {p: held.index(label) for p, held in HELD.items() if label in held}
        rows = [uploads[p]["prototypes"].vectors[place].numpy() for p, place in of.items()]
        np.testing.assert_allclose(vector, np.mean(rows, axis=0), rtol=1e-5, atol=1e-7)
    start = drawn(shared_seed(0, "generator"), lambda: Generator(K, D))
    for number, state in ((1, {}), (2, first.state)):
        made = Generator(K, D)
        kept = {name.removeprefix("generator/"): t for name, t in state.items() if name.startswith("generator/")}
        made.load_state_dict(kept or start.state_dict())
        draw = stream(0, "round", number, "generator")
        labels = torch.tensor([0, 1, 3])[torch.randint(3, (32,), generator=draw)]
        noise = made.noise(32, draw)
        made_of = made(noise, labels).detach()
        expected = 25 * 0.98 ** (number - 1) * teachers_loss(uploads, made_of, labels)
        expected += float(diversity(noise, made_of, labels))
        if state:
            table = prototypes.table(K)[0]
            expected -= 0.15 * float((made_of - table[labels]).square().mean())
        found = server.aggregate(uploads, state, number)
        assert found.figures["generator_loss"] == pytest.approx(expected, rel=1e-5)
    last = server.aggregate({2: uploads[2]}, first.state, 2).downloads[0]["prototypes"]
    assert last.labels.tolist() == [0, 1, 3]
    assert torch.equal(last.vectors[[0, 2]], prototypes.vectors[[0, 2]]), "what nobody reported stays"
    torch.testing.assert_close(last.vectors[1], uploads[2]["prototypes"].vectors[0])


@pytest.mark.parametrize(("number", "beta"), [(2, 5 * 0.98), (400, 0.15)])
def test_fedpa_s_client_adds_the_generated_features_and_the_distance_to_the_prototypes(number, beta):
    _, objective = halves_of("fedpa")
    state = client(objective)
    shared = objective.shared(state.module)
    known = dict(shared["generator"].tensors) | {"generator.held": torch.ones(K)}
    prototypes = PrototypeSet(torch.tensor([0, 2]), torch.randn(2, D))
    came = {**shared, "generator": Weights(known), "prototypes": prototypes}
    objective.receive(state, came, number)
    state.targets = objective.targets(state, came)
    state.table = state.targets.table(K)
    batch = Batch(torch.randn(4, 2), torch.tensor([0, 1, 2, 2]))
    loss = objective.loss(state, batch, objective.phases(state, number)[0], number)
    z = state.module.features(batch.inputs)
    far = (z[[0, 2, 3]] - prototypes.vectors[[0, 1, 1]]).square().mean()
    torch.testing.assert_close(loss.parts["prototype-distance"], far)
    generated = loss.parts["generated-cross-entropy"]
    expected = loss.parts["cross-entropy"] + 25 * 0.98 ** (number - 1) * generated + beta * far
    torch.testing.assert_close(loss.total, expected)


# --- the diversity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [None, (0, 1, 0, 2), (1, 1, 1, 1)])
def test_the_diversity_is_that_of_loops(labels):
    random = torch.Generator().manual_seed(4)
    noise = torch.rand(4, 2, dtype=torch.float64, generator=random)
    made = torch.randn(4, 3, dtype=torch.float64, generator=random)
    far = [
        float((noise[a] - noise[b]).square().mean() * (made[a] - made[b]).abs().mean())
        for a, b in itertools.product(range(4), repeat=2)
        if labels is None or labels[a] != labels[b]
    ]
    given = None if labels is None else torch.tensor(labels)
    # with labels, too, by the number of all pairs
    assert float(diversity(noise, made, given)) == pytest.approx(math.exp(-sum(far) / 16), rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: diversity(noise, z, given), made.requires_grad_())
