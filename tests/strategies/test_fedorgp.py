"""FedORGP against the paper written out: loops over uploads, classes and samples."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from protosphere.core.seeds import derive, generator
from protosphere.prototypes.trainable import TrainablePrototypes, orthogonality_loss
from protosphere.strategies.contract import EVERYONE, Batch, ClientState, Phase
from tests.payloads import lone, payloads
from tests.strategies.sets import class_means, in_part

K, D = 5, 7
QUICK = {"strategy": "fedorgp", "fedorgp.server-epochs": 3, "fedorgp.server-batch-size": 4}


def cosine(one, other):
    return (one @ other) / (one.norm() * other.norm())


def naive_loss(rows, prototypes, intra_weight, inter_weight):
    """Eq. 3 to 5, of (vector, label) and label -> prototype."""
    alike, common = 0.0, 0.0
    for vector, label in rows:
        alike += cosine(vector, prototypes[label]) / len(rows)
        others = [other for other in prototypes if other != label]
        for other in others:
            common += cosine(vector, prototypes[other]).abs() / len(others) / len(rows)
    return intra_weight * (1 - alike) + inter_weight * common


@pytest.mark.parametrize(("intra_weight", "inter_weight"), [(1.0, 10.0), (0.3, 2.0)])
def test_a_round_of_the_server_is_sgd_on_the_modules_weights_by_loops(halves, intra_weight, inter_weight):
    weights = {"fedorgp.intra-weight": intra_weight, "fedorgp.inter-weight": inter_weight}
    server = halves(QUICK | weights, K, D).server
    # 2 and 4 are nobody's
    sets = class_means(in_part(4, (0, 1, 3)), D)

    outcome = server.aggregate(payloads(sets), {}, 1)

    module = TrainablePrototypes(K, D, derive(0, "fedorgp")).double()
    rows = []
    for prototypes in sets.values():
        rows += zip(prototypes.vectors.double(), prototypes.labels.tolist(), strict=True)
    classes = sorted({label for _, label in rows})
    draws = generator(0, "round", 1, "fedorgp")
    for _ in range(3):
        for chunk in torch.randperm(len(rows), generator=draws).split(4):
            now = dict(zip(classes, module()[classes], strict=True))
            loss = naive_loss([rows[index] for index in chunk.tolist()], now, intra_weight, inter_weight)
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter -= 0.01 * gradient
    sent = lone(outcome.downloads[EVERYONE])
    assert sent.labels.tolist() == classes
    torch.testing.assert_close(sent.vectors.double(), module()[classes].detach(), rtol=1e-4, atol=1e-5)


def test_of_one_class_nothing_is_common():
    vectors, label = torch.ones(1, D, dtype=torch.float64), torch.tensor([0])
    assert float(orthogonality_loss(2 * vectors, label, vectors, 1.0, 10.0)) == pytest.approx(0)


class Linear:
    """A model whose features are its inputs."""

    def features(self, x):
        return x

    def classify(self, z):
        return z[:, :K]


def test_a_client_adds_the_weighted_pull_of_samples_with_a_target_and_the_first_round_has_none(halves):
    objective = halves(QUICK, K, D).objective
    random = torch.Generator().manual_seed(2)
    features = torch.randn(9, D, generator=random, dtype=torch.float64)
    labels = torch.randint(K, (9,), generator=random)
    targets = torch.randn(K, D, generator=random, dtype=torch.float64)
    present = torch.tensor([True, False, True, True, False])
    state, batch, phase = ClientState(Linear()), Batch(features, labels), Phase("train", [])

    plain = objective.loss(state, batch, phase, 1).total
    state.table = targets, present
    pulled = objective.loss(state, batch, phase, 2).total

    distances = []
    for z, label in zip(features, labels.tolist(), strict=True):
        if present[label]:
            distances.append(1 - float(cosine(z, targets[label])))
    assert 0 < len(distances) < 9
    assert float(plain) == pytest.approx(float(cross_entropy(features[:, :K], labels)))
    assert float(pulled) == pytest.approx(float(plain) + 100 * math.fsum(distances) / len(distances))
