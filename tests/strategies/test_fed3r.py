"""Fed3R: its W is scikit-learn's ridge regression on all samples together, however they lie among clients, and what
AFL's law makes of clients two by two; how exact it is as float32; random features; what is refused."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn.functional import normalize, one_hot

from protosphere.prototypes.weights import Weights
from protosphere.strategies.contract import EVERYONE
from protosphere.strategies.fed3r import GRAM, SUMS, TARGETS, impossible_sums, ridge
from tests.strategies.in_space import D, K, N, exchanged, halves, partitions, samples, unit, upload_of

EYE = torch.eye(D, dtype=torch.float64)


def sums_of(features, labels, classes=K):
    """G and B^T of one client, by a loop."""
    gram = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    targets = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    for z, label in zip(unit(features), labels, strict=True):
        gram += torch.outer(z, z)
        targets[label] += z
    return gram, targets


def of_scikit_learn(features, labels, strength, classes=K):
    """W^T of all samples together, (K, d)."""
    targets = one_hot(labels, classes).double().numpy()
    # of its solvers the one that does not square the condition
    return Ridge(strength, fit_intercept=False, solver="svd").fit(unit(features).numpy(), targets).coef_


def weight_of(received):
    """W^T as it came, without the factor that keeps a message within its bound."""
    tensors = received["classifier"].tensors
    return float((tensors["known"].max() - 1).exp()) * tensors["weight"].double()


@pytest.mark.parametrize("strength", [1e-3, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("kind", partitions(samples()[1]))
def test_sums_of_clients_give_the_ridge_regression_of_all_samples_to_1e_10(kind, strength):
    features, labels = samples()
    parts = [sums_of(features[indices], labels[indices]) for indices in partitions(labels)[kind]]
    gram, targets = (sum(part[i] for part in parts) for i in (0, 1))
    expected = of_scikit_learn(features, labels, strength)
    np.testing.assert_allclose(ridge(gram, targets, strength), expected, rtol=1e-10, atol=1e-10)


def pairwise(first, second):
    """AFL's absolute aggregation law: the (C, W) of two clients, W = C^-1 B, as one."""
    (one, weight_one), (other, weight_other) = first, second
    identity, both = torch.eye(len(one), dtype=torch.float64), torch.linalg.inv(one + other)
    share_one = identity - torch.linalg.solve(one, other) @ (identity - both @ other)
    share_other = identity - torch.linalg.solve(other, one) @ (identity - both @ one)
    return one + other, share_one @ weight_one + share_other @ weight_other


@pytest.mark.parametrize("kind", ["one", "in turn", "by class", "unevenly"])
def test_by_afl_s_law_clients_two_by_two_come_to_the_same_to_1e_10(kind):
    """Each with its own regression, gamma I for those of few samples, which is taken off again at the end."""
    features, labels = samples()
    strength, gamma = 0.01, 1.0
    clients = []
    for indices in partitions(labels)[kind]:
        gram, targets = sums_of(features[indices], labels[indices])
        regularised = gram + gamma * EYE
        clients.append((regularised, torch.linalg.solve(regularised, targets.T)))
    total, weight = clients[0]
    for client in clients[1:]:
        total, weight = pairwise((total, weight), client)
    restored = total + (strength - len(clients) * gamma) * EYE
    by_law = torch.linalg.solve(restored, total @ weight).T
    gram, targets = sums_of(features, labels)
    np.testing.assert_allclose(by_law, ridge(gram, targets, strength), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", partitions(samples()[1]))
@pytest.mark.parametrize(("strength", "exact"), [(0.01, 3e-6), (1.0, 3e-7)])
def test_over_the_wire_it_is_exact_to_float32_times_the_condition(kind, strength, exact):
    """The condition of G + lambda I is some hundreds here, where features of few dimensions fill them all."""
    features, labels = samples()
    settings = {"fed3r.ridge": strength}
    received, objective, _ = exchanged("fed3r", partitions(labels)[kind], features, labels, **settings)
    expected = of_scikit_learn(features, labels, strength)
    error = np.abs(weight_of(received).numpy() - expected).max() / np.abs(expected).max()
    gram, _ = sums_of(features, labels)
    condition = np.linalg.cond(gram + strength * EYE)
    assert error < min(exact, 2.0**-22 * condition)
    new = unit(samples(seed=1)[0])
    assert torch.equal(objective.encoded_scores(received, new).argmax(dim=1), torch.tensor(new @ expected.T).argmax(1))


def test_of_far_fewer_samples_than_dimensions_most_predictions_stay():
    """lambda 0.01 below eigenvalues of which most are 0."""
    features, labels = samples(n=60, dim=200)
    indices = [torch.arange(60)[i::4] for i in range(4)]
    received, objective, _ = exchanged("fed3r", indices, features, labels)
    expected = of_scikit_learn(features, labels, 0.01)
    assert np.abs(weight_of(received).numpy() - expected).max() < 1e-4 * np.abs(expected).max()
    assert float((objective.encoded_scores(received, unit(features)).argmax(dim=1) == labels).double().mean()) == 1


def test_each_w_can_be_divided_by_its_length():
    features, labels = samples()
    received, objective, _ = exchanged("fed3r", [torch.arange(N)], features, labels, **{"fed3r.normalise": True})
    expected = normalize(torch.tensor(of_scikit_learn(features, labels, 0.01)), dim=1)
    np.testing.assert_allclose(weight_of(received), expected, atol=1e-5)
    new = unit(samples(seed=1)[0])
    np.testing.assert_allclose(objective.encoded_scores(received, new), new @ expected.T, atol=1e-5)


def test_random_features_are_alike_at_all_clients_of_length_1_and_near_the_kernel():
    width = 8_000
    _, one = halves("fed3r", **{"fed3r.random-features": width, "fed3r.sigma": 0.7})
    _, other = halves("fed3r", **{"fed3r.random-features": width, "fed3r.sigma": 0.7})
    _, of_another_seed = halves("fed3r", seed=1, **{"fed3r.random-features": width, "fed3r.sigma": 0.7})
    z = unit(samples(n=50)[0])
    features = one.features_of(z)
    assert torch.equal(features, other.features_of(z))
    assert not torch.equal(features, of_another_seed.features_of(z))
    np.testing.assert_allclose(features.norm(dim=1), 1, atol=1e-12)
    kernel = (-torch.cdist(z, z).square() / (2 * 0.7**2)).exp()
    # five standard deviations at most
    np.testing.assert_allclose(features @ features.T, kernel, atol=5 * width**-0.5)


def test_with_random_features_it_is_the_ridge_regression_on_them_and_bends():
    """Of classes inside and outside a cone, which no linear classifier tells apart."""
    random = np.random.default_rng(0)
    features = torch.tensor(random.normal(size=(600, 3)))
    labels = (unit(features)[:, 0].abs() > 0.6).long()
    settings = {"fed3r.random-features": 200, "fed3r.sigma": 0.5}
    indices = [torch.arange(600)[i::3] for i in range(3)]
    received, objective, _ = exchanged("fed3r", indices, features, labels, classes=2, **settings)
    waves = objective.features_of(unit(features)).numpy()
    theirs = Ridge(0.01, fit_intercept=False, solver="svd").fit(waves, one_hot(labels).double().numpy())
    scores = objective.encoded_scores(received, unit(features))
    np.testing.assert_allclose(scores, theirs.predict(waves), atol=5e-3)
    linear, plain, _ = exchanged("fed3r", indices, features, labels, classes=2)
    without = plain.encoded_scores(linear, unit(features))
    assert float((scores.argmax(dim=1) == labels).double().mean()) > 0.95
    assert float((without.argmax(dim=1) == labels).double().mean()) < 0.75


def test_classes_of_fewer_samples_are_in_neither_sum():
    labels = torch.tensor([0] * 5 + [1] * 4 + [3])
    features, _ = samples(n=10)
    _, objective = halves("fed3r", **{"fed3r.fewest": 5})
    tensors = upload_of(objective, features, labels)[SUMS].tensors
    gram, targets = sums_of(features[:5], labels[:5])
    np.testing.assert_allclose(tensors[GRAM], gram / 10, atol=1e-7)
    np.testing.assert_allclose(tensors[TARGETS], targets / 10, atol=1e-7)
    # one that has nothing to send adds nothing, and is heard
    server, _ = halves("fed3r", (4, 10), **{"fed3r.fewest": 5})
    nothing = upload_of(objective, features[5:9], labels[5:9])
    outcome = server.aggregate({0: nothing, 1: upload_of(objective, features, labels)}, {}, 1)
    alone = server.aggregate({1: upload_of(objective, features, labels)}, {}, 1)
    assert outcome.figures == {"heard": 2}
    assert torch.equal(outcome.state[GRAM], alone.state[GRAM])
    assert outcome.downloads[EVERYONE]["classifier"].tensors["known"].tolist() == [1, 0, 0, 0]


def test_where_clients_are_sampled_each_is_heard_once():
    features, labels = samples()
    server, objective = halves("fed3r", (100,) * 4, **{"fraction-train": 0.5})
    uploads = {p: upload_of(objective, features[p::4], labels[p::4]) for p in range(4)}
    first = server.aggregate({p: uploads[p] for p in (1, 3)}, {}, 1)
    second = server.aggregate({0: uploads[0], 1: uploads[2], 2: uploads[2]}, first.state, 2)
    assert second.state["heard"].tolist() == [1, 3, 0, 2]
    assert server.aggregate({3: uploads[3]}, second.state, 3).keeps
    gram, targets = sums_of(features, labels)
    np.testing.assert_allclose(second.state[GRAM], gram, atol=1e-5)
    np.testing.assert_allclose(second.state[TARGETS], targets, atol=1e-5)
    assert "client 0, client 2, client 3 sent nothing" in server.aggregate({1: uploads[1]}, {}, 6).warnings[0]


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda gram, targets: (3 * gram, targets), "add up to 1 a sample"),
        (lambda gram, targets: (gram - 0.3 * EYE.float(), targets), "without a negative eigenvalue"),
        (lambda gram, targets: (gram + 0.1 * torch.ones(D, D).triu(1), targets), "symmetric"),
        (lambda gram, targets: (gram, 2 * targets), "times as many samples"),
        (lambda gram, targets: (0.1 * gram, targets), "times as many samples"),
        (lambda gram, targets: (0 * gram, targets), "times as many samples"),
    ],
)
def test_sums_that_no_unit_vectors_have_are_refused(lie, words):
    features, labels = samples()
    server, objective = halves("fed3r", (N,))
    upload = upload_of(objective, features, labels)
    assert server.contradiction(0, upload) == ""
    gram, targets = lie(upload[SUMS].tensors[GRAM], upload[SUMS].tensors[TARGETS])
    assert words in server.contradiction(0, {SUMS: Weights({GRAM: gram, TARGETS: targets})})


@pytest.mark.parametrize("kind", ["one sample", "the same samples", "no direction", "a dimension less", "tiny classes"])
def test_whatever_samples_there_are_their_sums_are_possible(kind):
    features, labels = {
        "one sample": (torch.ones(1, D), torch.zeros(1, dtype=torch.int64)),
        "the same samples": (torch.ones(20, D), torch.arange(20) % 2),
        "no direction": (torch.full((8, D), torch.nan), torch.arange(8) % 2),
        "a dimension less": (samples()[0] * torch.tensor([1, 1, 1, 1, 1e-4]), samples()[1]),
        "tiny classes": (samples()[0], (torch.arange(N) < 3).long()),
    }[kind]
    received, objective, _ = exchanged("fed3r", [torch.arange(len(labels))], features, labels)
    if kind != "no direction":
        scores = objective.encoded_scores(received, unit(features))[:, labels.unique()]
        assert bool(scores.isfinite().all())


def test_a_class_that_the_client_does_not_have_is_refused():
    features, labels = samples()
    server, objective = halves("fed3r", (N,))
    server.identities = {0: server.identities[0].__class__(0, 1, rows=(N, 0, 0), classes=(0, 1, 2))}
    assert "has no training sample" in server.contradiction(0, upload_of(objective, features, labels))


def test_that_sums_are_possible_holds_for_any_samples_of_many_dimensions():
    random = torch.Generator().manual_seed(0)
    for samples_of_one, dim in ((3, 64), (30, 64), (500, 64), (40, 300)):
        z = normalize(torch.randn(samples_of_one, dim, generator=random, dtype=torch.float64) ** 3, dim=1)
        labels = one_hot(torch.arange(samples_of_one) % 7, 7).double()
        sums = [(matrix / samples_of_one).float().double() for matrix in (z.T @ z, labels.T @ z)]
        assert impossible_sums(*sums, 1.0) == ""
        assert "times as many" in impossible_sums(sums[0], 1.1 * sums[1], 1.0) or samples_of_one > dim
        shorter = z * torch.rand(samples_of_one, 1, generator=random, dtype=torch.float64)
        of_shorter = [
            (matrix / samples_of_one).float().double() for matrix in (shorter.T @ shorter, labels.T @ shorter)
        ]
        assert impossible_sums(*of_shorter, 1.0) == ""


@pytest.mark.parametrize("radius", [0.5, 20.0])
def test_features_within_a_radius_give_the_ridge_regression_of_these(radius):
    features, labels = samples()
    partition = partitions(labels)["unevenly"]
    received, _, _ = exchanged("fed3r", partition, features, labels, **{"encoder-radius": radius, "fed3r.ridge": 1.0})
    z = (features / features.norm(dim=1, keepdim=True).clamp_min(radius)).numpy()
    targets = one_hot(labels, K).double().numpy()
    expected = Ridge(1.0, fit_intercept=False, solver="svd").fit(z, targets).coef_
    np.testing.assert_allclose(weight_of(received), expected, rtol=1e-4, atol=1e-5)
