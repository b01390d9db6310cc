"""FedPAGR against the paper written out: what the server refines, what a client trains and predicts with."""

from dataclasses import asdict

import pytest
import torch
from torch.nn.functional import cross_entropy

from protosphere.models import build
from protosphere.prototypes.losses import entropy_spread, prototype_contrast
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.refinement import class_sums, mean_directions, refine
from protosphere.strategies.contract import Batch, ClientState, Phase, as_state
from tests.payloads import lone, payload, payloads
from tests.strategies.sets import class_means, in_part

K, D = 5, 8
FEDPAGR = {"strategy": "fedpagr"}
OTHER_SERVER = {
    "fedpagr.separation-weight": 2.0,
    "fedpagr.margin": -0.2,
    "fedpagr.steps": 7,
    "fedpagr.server-learning-rate": 0.05,
    "fedpagr.server-momentum": 0.5,
}


def uploads(seed=0):
    """Of six clients, around one direction and of any length, as masks make them; class 4 is nobody's."""
    made = class_means(in_part(6, range(4)), D, seed, 1.0)
    return {partition: sent.with_vectors((partition + 1) * sent.vectors) for partition, sent in made.items()}


def prototypes(seed, num_classes=K, dim=D, length=1.0):
    random = torch.Generator().manual_seed(seed)
    vectors = torch.nn.functional.normalize(torch.randn(num_classes, dim, generator=random, dtype=torch.float64))
    return PrototypeSet(torch.arange(num_classes), (length * vectors).float())


@pytest.mark.parametrize("options", [{}, OTHER_SERVER], ids=["paper", "other"])
def test_the_step_is_the_refinement_of_the_normalised_means_to_the_bit(halves, options):
    """Over two rounds; tests/prototypes has both written out. A class that nobody reports has no agreement."""
    names = ("separation_weight", "margin", "steps", "learning_rate", "momentum")
    given = dict(zip(names, options.values() or (0.5, 0.3, 5, 0.01, 0.9), strict=True))
    strategy = halves(FEDPAGR | options, K, D).server
    state = strategy.begin().state
    for number in (1, 2):
        sets = uploads(number)
        sums, counts = class_sums(list(sets.values()), K)
        assert counts.tolist() == [4, 4, 4, 4, 0]
        start = mean_directions(sums, counts, state["vectors"])
        refined = refine(start, sums, counts, **given)
        outcome = strategy.aggregate(payloads(sets), state, number)
        (download,), state = map(lone, outcome.downloads.values()), outcome.state
        assert download.labels.tolist() == list(range(K))
        assert torch.equal(state["vectors"], download.vectors)
        assert torch.equal(state["vectors"], refined.points)
        # the steps did something
        assert float((refined.points - start).norm(dim=1).max()) > 0.01
        for when, parts in (("before", refined.before), ("after", refined.after)):
            assert {name: outcome.figures[f"{name}_{when}"] for name in asdict(parts)} == asdict(parts)
        assert len(outcome.figures) == 6


def client_half(halves, settings=None, received=None, round_number=1):
    """An objective and its state, as a client has them once it received."""
    made = halves(FEDPAGR | (settings or {}), K, D)
    objective = made.objective
    state = ClientState(objective.build(build("tiny_perceptron", (1, 8, 8), D, K, 0), 3))
    received = prototypes(7, length=2.5) if received is None else received
    objective.receive(state, payload(received), round_number)
    state.targets = objective.targets(state, payload(received))
    state.table = state.targets.table(K)
    return objective, state


def batch_of(seed=0, rows=11):
    random = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(rows, 1, 8, 8, generator=random), torch.randint(0, K, (rows,), generator=random))


def test_receiving_anchors_the_classifier(halves):
    """W = P and b = 0, whatever was there; P of unit rows, however long they came."""
    came = prototypes(7, length=2.5)
    objective, state = client_half(halves, received=came)
    expected = came.on_sphere().vectors
    assert torch.equal(state.module.classifier.weight, expected)
    assert torch.equal(state.module.classifier.bias, torch.zeros(K))
    assert torch.equal(state.targets.vectors, expected)
    # logits are the cosines
    state.module.eval()
    z = objective.features(state, batch_of().inputs)
    torch.testing.assert_close(state.module.classify(z), z @ expected.T)


@pytest.mark.parametrize("options", [{}, {"fedpagr.temperature": 0.7, "fedpagr.entropy-weight": 2.0}])
def test_the_loss_is_the_papers(halves, options):
    """Its terms are held against loops in tests/prototypes/test_losses.py."""
    objective, state = client_half(halves, options)
    with torch.no_grad():
        state.module.classifier.bias.copy_(torch.linspace(-1, 1, K))
        state.module.classifier.weight.mul_(1.7)
    state.module.eval()
    batch = batch_of()
    loss = objective.loss(state, batch, Phase("train", []), 2)
    beta, weight = options.get("fedpagr.temperature", 0.1), options.get("fedpagr.entropy-weight", 0.1)
    z, given = loss.features, prototypes(7).on_sphere().table(K)
    expected = {
        "cross-entropy": cross_entropy(state.module.classifier(z), batch.labels),
        "prototype-contrast": prototype_contrast(z, batch.labels, *given, temperature=beta),
        "entropy-spread": entropy_spread(z, *given, temperature=beta),
    }
    assert loss.parts.keys() == expected.keys()
    for name, part in expected.items():
        torch.testing.assert_close(loss.parts[name], part)
    whole = expected["cross-entropy"] + expected["prototype-contrast"] + weight * expected["entropy-spread"]
    torch.testing.assert_close(loss.total, whole)
    torch.testing.assert_close(loss.features.norm(dim=1), torch.ones(len(batch.labels)))


def test_what_is_uploaded_are_directions_and_zeros_stay_zeros(halves):
    objective, state = client_half(halves)
    vectors = torch.tensor([[3.0, 0, 0, 4, 0, 0, 0, 0], [0.0] * 8, [0.01] * 8])
    state.prototypes = PrototypeSet(torch.tensor([0, 2, 3]), vectors, torch.tensor([5, 6, 7]))
    sent = lone(objective.upload(state, 1))
    expected = torch.tensor([[0.6, 0, 0, 0.8, 0, 0, 0, 0], [0.0] * 8, [8**-0.5] * 8])
    torch.testing.assert_close(sent.vectors, expected)
    # and the client keeps its own means
    assert torch.equal(state.prototypes.vectors, vectors)


def test_a_client_predicts_with_what_it_trained_with(halves):
    """Whatever comes later; one that never trained, with what came last. The store keeps it."""
    objective, state = client_half(halves)
    kept = {name: tensor.clone() for name, tensor in state.extra.items()}
    for newest in (prototypes(8), None):
        assert torch.equal(
            objective.targets(state, payload(newest)).vectors, prototypes(7, length=2.5).on_sphere().vectors
        )
    assert kept.keys() == state.extra.keys() == as_state(prototypes(7)).keys()
    assert all(torch.equal(tensor, state.extra[name]) for name, tensor in kept.items())
    stranger, came = ClientState(state.module), prototypes(8)
    longer = came.with_vectors(3 * came.vectors)
    torch.testing.assert_close(objective.targets(stranger, payload(longer)).vectors, came.vectors)
    assert objective.targets(stranger, None) is None
    assert not stranger.extra
