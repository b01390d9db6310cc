"""FedTGP against the paper written out: a network of the same weights, trained by a loop over batches."""

import math

import numpy as np
import pytest
import torch

from protosphere.core.seeds import derive, generator
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.trainable import TrainablePrototypes, adaptive_margin, contrastive_loss
from protosphere.strategies.contract import EVERYONE
from tests.payloads import lone, payloads
from tests.strategies.sets import class_means, in_part, same_state

K, D = 6, 8
QUICK = {"strategy": "fedtgp", "fedtgp.server-epochs": 3, "fedtgp.server-batch-size": 4}


def uploads(seed=0, classes=(0, 1, 2, 4)):
    """Of five clients, each with some of the classes; 3 and 5 are nobody's unless asked for."""
    return class_means(in_part(5, classes), D, seed, 1.0)


def strategy_of(halves, settings=None, num_classes=K):
    return halves(QUICK | (settings or {}), num_classes, D).server


def rows_of(sets):
    vectors = torch.cat([each.vectors for each in sets.values()]).double()
    return vectors, torch.cat([each.labels for each in sets.values()])


def test_prototypes_are_an_embedding_through_two_layers():
    module = TrainablePrototypes(K, D, 3)
    first, _, second = module.network
    expected = second(torch.relu(first(module.embedding.weight)))
    torch.testing.assert_close(module(), expected)


@pytest.mark.parametrize(
    "extra", [{"fedtgp.server-momentum": 0.9}, {"fedtgp.margin": 0.5, "seed": 3, "fedtgp.server-batch-size": 32}]
)
def test_two_rounds_are_sgd_on_the_contrast_written_out(halves, extra):
    """Loss and margin are held against loops in tests/prototypes/test_trainable.py."""
    settings = {"fedtgp.margin": 100.0, "fedtgp.server-momentum": 0.0, "seed": 0} | QUICK | extra
    size, seed = settings["fedtgp.server-batch-size"], settings["seed"]
    module = TrainablePrototypes(K, D, derive(seed, "fedtgp")).double()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=settings["fedtgp.server-momentum"])
    strategy, state, present = strategy_of(halves, extra), {}, torch.zeros(K, dtype=torch.bool)
    for server_round, classes in ((1, (0, 1, 2)), (2, (0, 2, 4))):
        sets = uploads(server_round, classes=classes)
        before = {name: tensor.clone() for name, tensor in state.items()}
        outcome = strategy.aggregate(payloads(sets), state, server_round)
        assert same_state(state, before), "a round that fails is tried again from it"
        download, state = lone(outcome.downloads[EVERYONE]), outcome.state

        present[list(classes)] = True
        vectors, labels = rows_of(sets)
        means = [vectors[labels == label].mean(dim=0) for label in classes]
        margin = adaptive_margin(torch.stack(means), settings["fedtgp.margin"])
        draws = generator(seed, "round", server_round, "fedtgp")
        for _ in range(settings["fedtgp.server-epochs"]):
            total = 0.0
            for batch in torch.randperm(len(labels), generator=draws).split(size):
                loss = contrastive_loss(vectors[batch], labels[batch], module(), margin, present)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * len(batch)

        assert set(outcome.downloads) == {EVERYONE}
        assert download.labels.tolist() == present.nonzero().flatten().tolist()
        assert download.vectors.dtype == torch.float32
        np.testing.assert_allclose(download.vectors, module()[present].detach(), rtol=0, atol=2e-5)
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(state[f"module/{name}"], value, rtol=0, atol=2e-5)
        assert outcome.figures["margin"] == pytest.approx(margin, rel=1e-6)
        collapsed = math.log(1 + (int(present.sum()) - 1) * math.exp(margin))
        assert outcome.figures["collapsed_loss"] == pytest.approx(collapsed, rel=1e-6)
        assert outcome.figures["contrastive_loss"] == pytest.approx(total / len(labels), rel=1e-5)


def test_a_round_of_empty_uploads_trains_nothing(halves):
    strategy, empty = strategy_of(halves), {0: PrototypeSet.empty(D), 3: PrototypeSet.empty(D)}
    nothing = strategy.aggregate(payloads(empty), {}, 1)
    assert len(lone(nothing.downloads[EVERYONE])) == 0
    assert nothing.figures == {"margin": 100.0, "collapsed_loss": 0.0}
    # and the next round starts as the first would have
    assert same_state(
        strategy.aggregate(payloads(uploads()), nothing.state, 2).state,
        strategy.aggregate(payloads(uploads()), {}, 2).state,
    )
    first = strategy.aggregate(payloads(uploads()), {}, 1)
    still = strategy.aggregate(payloads(empty), first.state, 2)
    assert same_state(still.state, first.state)
    assert torch.equal(lone(still.downloads[EVERYONE]).vectors, lone(first.downloads[EVERYONE]).vectors)
