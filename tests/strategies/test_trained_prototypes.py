"""FedTGP and FedORGP against their papers written out: a module of the same weights, trained by a loop over batches;
and FedORGP's pull by loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from protosphere.core.seeds import derive, generator
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.trainable import (
    TrainablePrototypes,
    adaptive_margin,
    contrastive_loss,
    orthogonality_loss,
)
from protosphere.strategies.contract import EVERYONE, Batch, ClientState, Phase
from tests.payloads import lone, payloads
from tests.strategies.sets import class_means, in_part, same_state

K, D = 6, 8


def uploads(seed=0, classes=(0, 1, 2, 4)):
    """Of five clients, each with some of the classes; 3 and 5 are nobody's unless asked for."""
    return class_means(in_part(5, classes), D, seed, 1.0)


def server_of(halves, method, **settings):
    quick = {f"{method}.server-epochs": 3, f"{method}.server-batch-size": 4}
    return halves({"strategy": method} | quick | settings, K, D).server


def cosine(one, other):
    return (one @ other) / (one.norm() * other.norm())


def orthogonality(rows, prototypes, intra_weight, inter_weight):
    """FedORGP, Eq. 3 to 5, of (vector, label) and label -> prototype."""
    alike, common = 0.0, 0.0
    for vector, label in rows:
        alike += cosine(vector, prototypes[label]) / len(rows)
        others = [other for other in prototypes if other != label]
        for other in others:
            common += cosine(vector, prototypes[other]).abs() / len(others) / len(rows)
    return intra_weight * (1 - alike) + inter_weight * common


def test_prototypes_are_an_embedding_through_two_layers():
    module = TrainablePrototypes(K, D, 3)
    first, _, second = module.network
    expected = second(torch.relu(first(module.embedding.weight)))
    torch.testing.assert_close(module(), expected)


@pytest.mark.parametrize(
    ("method", "settings", "size"),
    [
        ("fedtgp", {"fedtgp.margin": 100.0}, 4),
        ("fedtgp", {"fedtgp.margin": 0.5, "seed": 3, "fedtgp.server-batch-size": 32}, 32),
        ("fedorgp", {"fedorgp.intra-weight": 1.0, "fedorgp.inter-weight": 10.0}, 4),
        ("fedorgp", {"fedorgp.intra-weight": 0.3, "fedorgp.inter-weight": 2.0, "seed": 3}, 4),
    ],
)
def test_two_rounds_are_sgd_on_the_loss_written_out(halves, method, settings, size):
    """FedTGP's loss and margin are held against loops in tests/prototypes/test_trainable.py."""
    seed = settings.get("seed", 0)
    module = TrainablePrototypes(K, D, derive(seed, method)).double()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    server, state, present = server_of(halves, method, **settings), {}, torch.zeros(K, dtype=torch.bool)
    for server_round, classes in ((1, (0, 1, 2)), (2, (0, 2, 4))):
        sets = uploads(server_round, classes=classes)
        before = {name: tensor.clone() for name, tensor in state.items()}
        outcome = server.aggregate(payloads(sets), state, server_round)
        assert same_state(state, before), "a round that fails is tried again from it"
        download, state = lone(outcome.downloads[EVERYONE]), outcome.state

        present[list(classes)] = True
        vectors = torch.cat([each.vectors for each in sets.values()]).double()
        labels = torch.cat([each.labels for each in sets.values()])
        means = torch.stack([vectors[labels == label].mean(dim=0) for label in classes])
        margin = adaptive_margin(means, settings.get("fedtgp.margin", 1.0))
        draws = generator(seed, "round", server_round, method)
        for _ in range(3):
            total = 0.0
            for batch in torch.randperm(len(labels), generator=draws).split(size):
                if method == "fedtgp":
                    loss = contrastive_loss(vectors[batch], labels[batch], module(), margin, present)
                else:
                    known = present.nonzero().flatten().tolist()
                    now = dict(zip(known, module()[known], strict=True))
                    rows = list(zip(vectors[batch], labels[batch].tolist(), strict=True))
                    weights = settings["fedorgp.intra-weight"], settings["fedorgp.inter-weight"]
                    loss = orthogonality(rows, now, *weights)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * len(batch)

        assert set(outcome.downloads) == {EVERYONE}
        assert download.labels.tolist() == present.nonzero().flatten().tolist()
        assert download.vectors.dtype == torch.float32
        np.testing.assert_allclose(download.vectors, module()[present].detach(), rtol=0, atol=2e-5)
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(state[name], value, rtol=0, atol=2e-5)
        name = "contrastive_loss" if method == "fedtgp" else "orthogonality_loss"
        assert outcome.figures[name] == pytest.approx(total / len(labels), rel=1e-5)
        if method == "fedtgp":
            assert outcome.figures["margin"] == pytest.approx(margin, rel=1e-6)
            collapsed = math.log(1 + (int(present.sum()) - 1) * math.exp(margin))
            assert outcome.figures["collapsed_loss"] == pytest.approx(collapsed, rel=1e-6)


def test_a_round_of_empty_uploads_trains_nothing(halves):
    server, empty = server_of(halves, "fedtgp"), {0: PrototypeSet.empty(D), 3: PrototypeSet.empty(D)}
    nothing = server.aggregate(payloads(empty), {}, 1)
    assert len(lone(nothing.downloads[EVERYONE])) == 0
    assert nothing.figures == {"margin": 100.0, "collapsed_loss": 0.0}
    # and the next round starts as the first would have
    first = server.aggregate(payloads(uploads()), {}, 2)
    assert same_state(server.aggregate(payloads(uploads()), nothing.state, 2).state, first.state)
    still = server.aggregate(payloads(empty), first.state, 3)
    assert same_state(still.state, first.state)
    assert torch.equal(lone(still.downloads[EVERYONE]).vectors, lone(first.downloads[EVERYONE]).vectors)


# --- FedORGP's client -------------------------------------------------------------------------------------------


def test_of_one_class_nothing_is_common():
    vectors, label = torch.ones(1, D, dtype=torch.float64), torch.tensor([0])
    assert float(orthogonality_loss(2 * vectors, label, vectors, 1.0, 10.0)) == pytest.approx(0)


def test_a_client_adds_the_weighted_pull_of_samples_with_a_target_and_the_first_round_has_none(halves):
    objective = halves({"strategy": "fedorgp"}, K, D).objective
    random = torch.Generator().manual_seed(2)
    features = torch.randn(9, D, generator=random, dtype=torch.float64)
    labels = torch.randint(K, (9,), generator=random)
    targets = torch.randn(K, D, generator=random, dtype=torch.float64)
    present = torch.tensor([True, False, True, True, False, True])
    # its features are its inputs
    model = SimpleNamespace(features=lambda inputs: inputs, classify=lambda z: z[:, :K])
    state, batch, phase = ClientState(model), Batch(features, labels), Phase("train", [])

    plain = objective.loss(state, batch, phase, 1).total
    state.table = targets, present
    pulled = objective.loss(state, batch, phase, 2).total

    held = [(z, label) for z, label in zip(features, labels.tolist(), strict=True) if present[label]]
    distances = [1 - float(cosine(z, targets[label])) for z, label in held]
    assert 0 < len(distances) < 9
    assert float(plain) == pytest.approx(float(cross_entropy(features[:, :K], labels)))
    assert float(pulled) == pytest.approx(float(plain) + 100 * math.fsum(distances) / len(distances))
