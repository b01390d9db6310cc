"""FedORGP against the paper written out: loops over uploads and classes, and finite differences."""

import math

import numpy as np
import pytest
import torch

from protosphere.core.seeds import derive, generator
from protosphere.prototypes.losses import cosine_pull
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.trainable import TrainablePrototypes, orthogonality_loss
from protosphere.strategies.contract import EVERYONE, Batch, ClientState, Phase
from tests.payloads import lone, payloads

K, D = 5, 7
QUICK = {"strategy": "fedorgp", "fedorgp.server-epochs": 3, "fedorgp.server-batch-size": 4}


def uploads(seed=0, clients=4, classes=(0, 1, 3)):
    """partition -> its prototypes; 2 and 4 are nobody's."""
    rng = np.random.default_rng(seed)
    made = {}
    for partition in range(clients):
        held = [label for label in classes if (partition + label) % 3]
        vectors = torch.from_numpy(rng.standard_normal((len(held), D)).astype(np.float32))
        made[partition] = PrototypeSet(torch.tensor(held, dtype=torch.int64), vectors)
    return made


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def naive_loss(vectors, labels, prototypes, intra_weight, inter_weight):
    """Eq. 3 to 5."""
    s = d = 0.0
    for vector, label in zip(vectors.tolist(), labels.tolist(), strict=True):
        s += cosine(vector, prototypes[label].tolist()) / len(vectors)
        others = [k for k in range(len(prototypes)) if k != label]
        d += sum(abs(cosine(vector, prototypes[k].tolist())) for k in others) / len(others) / len(vectors)
    return intra_weight * (1 - s) + inter_weight * d


def batch(seed=0, n=9):
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n, D, generator=random, dtype=torch.float64)
    return vectors, torch.randint(K, (n,), generator=random), torch.randn(K, D, generator=random, dtype=torch.float64)


@pytest.mark.parametrize(("intra_weight", "inter_weight"), [(1.0, 10.0), (0.3, 0.0), (0.0, 2.0)])
def test_the_servers_loss_is_the_papers_by_loops(intra_weight, inter_weight):
    vectors, labels, prototypes = batch()
    found = orthogonality_loss(vectors, labels, prototypes, intra_weight, inter_weight)
    assert float(found) == pytest.approx(naive_loss(vectors, labels, prototypes, intra_weight, inter_weight), rel=1e-12)


def test_its_gradients_equal_finite_differences():
    vectors, labels, prototypes = batch(3)
    assert torch.autograd.gradcheck(
        lambda v, p: orthogonality_loss(v, labels, p, 1.0, 10.0),
        (vectors.requires_grad_(), prototypes.requires_grad_()),
    )


def test_it_is_least_where_uploads_are_their_prototypes_and_these_orthogonal():
    prototypes = 3 * torch.eye(D, dtype=torch.float64)[:K]
    labels = torch.arange(K)
    assert float(orthogonality_loss(2 * prototypes, labels, prototypes, 1.0, 10.0)) == pytest.approx(0)
    # whatever the lengths are
    assert float(orthogonality_loss(prototypes, labels, 100 * prototypes, 1.0, 10.0)) == pytest.approx(0)
    one = prototypes[:1]
    assert float(orthogonality_loss(one, labels[:1], one, 1.0, 10.0)) == pytest.approx(0)


def test_the_clients_pull_is_one_less_the_cosine_over_samples_that_have_a_target():
    features, labels, targets = batch(1)
    present = torch.tensor([True, False, True, True, False])
    held = [index for index, label in enumerate(labels.tolist()) if present[label]]
    expected = sum(1 - cosine(features[i].tolist(), targets[labels[i]].tolist()) for i in held) / len(held)
    assert float(cosine_pull(features, labels, targets, present)) == pytest.approx(expected, rel=1e-12)
    assert float(cosine_pull(features, labels, targets, torch.zeros(K, dtype=torch.bool))) == 0
    assert torch.autograd.gradcheck(lambda z: cosine_pull(z, labels, targets, present), features.requires_grad_())


def test_a_round_of_the_server_is_sgd_on_the_modules_weights_by_loops(halves):
    server = halves(QUICK, K, D).server
    sets = uploads()
    outcome = server.aggregate(payloads(sets), {}, 1)
    module = TrainablePrototypes(K, D, derive(0, "fedorgp")).double()
    rows = [(v.double(), int(label)) for s in sets.values() for v, label in zip(s.vectors, s.labels, strict=True)]
    classes = sorted({label for _, label in rows})
    draws = generator(0, "round", 1, "fedorgp")
    for _ in range(3):
        for chunk in torch.randperm(len(rows), generator=draws).split(4):
            prototypes = module()[classes]
            some = [rows[index] for index in chunk.tolist()]
            unit = [p / p.norm() for p in prototypes]
            s = sum(v @ unit[classes.index(y)] / v.norm() for v, y in some) / len(some)
            d = sum((v @ unit[k] / v.norm()).abs() for v, y in some for k in range(len(classes)) if classes[k] != y) / (
                len(some) * (len(classes) - 1)
            )
            gradients = torch.autograd.grad((1 - s) + 10 * d, list(module.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter -= 0.01 * gradient
    sent = lone(outcome.downloads[EVERYONE])
    assert sent.labels.tolist() == classes
    torch.testing.assert_close(sent.vectors.double(), module()[classes].detach(), rtol=1e-4, atol=1e-5)


def test_training_makes_prototypes_more_orthogonal_and_nearer_to_what_was_uploaded(halves):
    server = halves(QUICK | {"fedorgp.server-epochs": 400, "fedorgp.server-learning-rate": 0.05}, K, D).server
    outcome = server.aggregate(payloads(uploads()), {}, 1)
    vectors = torch.nn.functional.normalize(lone(outcome.downloads[EVERYONE]).vectors, dim=1)
    before = torch.nn.functional.normalize(TrainablePrototypes(K, D, derive(0, "fedorgp"))()[[0, 1, 3]].detach(), dim=1)

    def common(points):
        return float((points @ points.T - torch.eye(3)).abs().mean())

    assert common(vectors) < common(before)


def test_the_clients_loss_adds_the_weighted_pull_and_the_first_round_has_none(halves):
    objective = halves(QUICK, K, D).objective

    class Linear:
        def features(self, x):
            return x

        def classify(self, z):
            return z[:, :K]

    features, labels, targets = batch(2)
    state = ClientState(Linear())
    example = Batch(features, labels)
    plain = objective.loss(state, example, Phase("train", []), 1)
    assert float(plain.total) == pytest.approx(float(torch.nn.functional.cross_entropy(features[:, :K], labels)))
    state.table = targets, torch.ones(K, dtype=torch.bool)
    pulled = objective.loss(state, example, Phase("train", []), 2)
    pull = sum(1 - cosine(z, targets[y].tolist()) for z, y in zip(features.tolist(), labels.tolist(), strict=True)) / 9
    assert float(pulled.total) == pytest.approx(float(plain.total) + 100 * pull)
