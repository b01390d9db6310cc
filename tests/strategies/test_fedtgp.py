"""FedTGP against the paper written out: a network of the same weights, loops over batches, rows and classes."""

import math

import numpy as np
import pytest
import torch

from protosphere.core.seeds import derive, generator
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.trainable import TrainablePrototypes
from protosphere.strategies.contract import EVERYONE
from tests.payloads import lone, payloads
from tests.strategies.sets import class_means, in_part, same_state

K, D = 6, 8
QUICK = {"strategy": "fedtgp", "fedtgp.server-epochs": 3, "fedtgp.server-batch-size": 4}
PARTS = ("embedding.weight", "network.0.weight", "network.0.bias", "network.2.weight", "network.2.bias")


def uploads(seed=0, classes=(0, 1, 2, 4)):
    """Of five clients, each with some of the classes; 3 and 5 are nobody's unless asked for."""
    return class_means(in_part(5, classes), D, seed, 1.0)


def strategy_of(halves, settings=None, num_classes=K):
    return halves(QUICK | (settings or {}), num_classes, D).server


def output(weights, label):
    """P_j: an embedding through Linear -> ReLU -> Linear."""
    embedding, first, first_bias, second, second_bias = weights
    return second @ torch.clamp(first @ embedding[label] + first_bias, min=0) + second_bias


def class_mean(sets, label):
    rows = [s.vectors[s.labels.tolist().index(label)].double() for s in sets.values() if label in s.labels.tolist()]
    return sum(rows) / len(rows)


def naive_margin(sets, limit):
    labels = sorted({label for s in sets.values() for label in s.labels.tolist()})
    means = {label: class_mean(sets, label) for label in labels}
    gaps = [min((float((means[j] - means[k]).norm()) for k in labels if k != j), default=math.inf) for j in labels]
    return min(max(gaps), limit)


def naive_loss(weights, rows, present, margin):
    """Mean over rows of -log softmax(-(D + margin onehot))[label], over the classes in `present`."""
    prototypes = {label: output(weights, label) for label in present}
    total = 0.0
    for vector, own in rows:
        logits = {k: -(((vector - p) ** 2).sum().sqrt() + (margin if k == own else 0.0)) for k, p in prototypes.items()}
        total = total + torch.stack([*logits.values()]).logsumexp(0) - logits[own]
    return total / len(rows)


def naive_round(weights, sets, present, server_round, settings, buffers=None):
    """Epochs of SGD in float64; gives (weights, momentum buffers, the last epoch's mean loss)."""
    weights = [w.double().clone().requires_grad_() for w in weights]
    rows = [(v.double(), int(label)) for s in sets.values() for v, label in zip(s.vectors, s.labels, strict=True)]
    margin = naive_margin(sets, settings.get("fedtgp.margin", 100.0))
    draws = generator(settings.get("seed", 0), "round", server_round, "fedtgp")
    momentum, size = settings.get("fedtgp.server-momentum", 0.0), settings["fedtgp.server-batch-size"]
    for _ in range(settings["fedtgp.server-epochs"]):
        order, losses = torch.randperm(len(rows), generator=draws).tolist(), []
        for start in range(0, len(rows), size):
            batch = [rows[index] for index in order[start : start + size]]
            loss = naive_loss(weights, batch, present, margin)
            gradients = torch.autograd.grad(loss, weights)
            buffers = [
                g if b is None else momentum * b + g for g, b in zip(gradients, buffers or [None] * 5, strict=True)
            ]
            weights = [(w - 0.01 * b).detach().requires_grad_() for w, b in zip(weights, buffers, strict=True)]
            losses.append(float(loss.detach()) * len(batch))
    return [w.detach() for w in weights], buffers, sum(losses) / len(rows)


@pytest.mark.parametrize(
    "extra", [{"fedtgp.server-momentum": 0.9}, {"fedtgp.margin": 0.5, "seed": 3, "fedtgp.server-batch-size": 32}]
)
def test_two_rounds_are_the_papers_written_out(halves, extra):
    settings = QUICK | extra
    start = TrainablePrototypes(K, D, derive(settings.get("seed", 0), "fedtgp")).state_dict()
    weights, buffers = [start[name] for name in PARTS], None
    strategy, state, present = strategy_of(halves, extra), {}, set()
    for server_round, classes in ((1, (0, 1, 2)), (2, (0, 2, 4))):
        sets = uploads(server_round, classes=classes)
        before = {name: tensor.clone() for name, tensor in state.items()}
        outcome = strategy.aggregate(payloads(sets), state, server_round)
        assert same_state(state, before), "a round that fails is tried again from it"
        present |= set(classes)
        weights, buffers, loss = naive_round(weights, sets, sorted(present), server_round, settings, buffers)
        download, state = lone(outcome.downloads[EVERYONE]), outcome.state
        assert set(outcome.downloads) == {EVERYONE}
        assert download.labels.tolist() == sorted(present)
        assert download.vectors.dtype == torch.float32
        expected = torch.stack([output(weights, label) for label in sorted(present)])
        np.testing.assert_allclose(download.vectors, expected, rtol=0, atol=2e-5)
        for name, value in zip(PARTS, weights, strict=True):
            np.testing.assert_allclose(state[f"module/{name}"], value, rtol=0, atol=2e-5)
        margin = naive_margin(sets, settings.get("fedtgp.margin", 100.0))
        assert outcome.figures["margin"] == pytest.approx(margin, rel=1e-6)
        collapsed = math.log(1 + (len(present) - 1) * math.exp(margin))
        assert outcome.figures["collapsed_loss"] == pytest.approx(collapsed, rel=1e-6)
        assert outcome.figures["contrastive_loss"] == pytest.approx(loss, rel=1e-5)


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
