"""Fed3R: its W is scikit-learn's ridge regression on all samples together, however they lie among clients; how exact it
is as float32; random features; what it shares with other methods of one exchange: test_one_exchange.py."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn.functional import normalize, one_hot

from protosphere.strategies.fed3r import ridge
from tests.strategies.in_space import D, K, N, exchanged, halves, partitions, samples, unit, upload_of


def sums_of(features, labels, classes=K):
    """G and B^T of these samples, by a loop."""
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


@pytest.mark.parametrize("strength", [0.01, 100.0])
def test_sums_give_the_ridge_regression_of_all_samples_to_1e_10(strength):
    features, labels = samples()
    expected = of_scikit_learn(features, labels, strength)
    found = ridge(*sums_of(features, labels), strength)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


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
    condition = np.linalg.cond(gram + strength * torch.eye(D, dtype=torch.float64))
    assert error < min(exact, 2.0**-22 * condition)
    new = unit(samples(seed=1)[0])
    assert torch.equal(
        objective.encoded_scores(received, new).argmax(dim=1), (new @ torch.tensor(expected).T).argmax(dim=1)
    )


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


def test_a_class_that_the_client_does_not_have_is_refused():
    features, labels = samples()
    server, objective = halves("fed3r", (N,))
    server.identities = {0: server.identities[0].__class__(0, 1, rows=(N, 0, 0), classes=(0, 1, 2))}
    assert "has no training sample" in server.contradiction(0, upload_of(objective, features, labels))


@pytest.mark.parametrize("radius", [0.5, 20.0])
def test_features_within_a_radius_give_the_ridge_regression_of_these(radius):
    features, labels = samples()
    partition = partitions(labels)["unevenly"]
    received, _, _ = exchanged("fed3r", partition, features, labels, **{"encoder-radius": radius, "fed3r.ridge": 1.0})
    z = (features / features.norm(dim=1, keepdim=True).clamp_min(radius)).numpy()
    targets = one_hot(labels, K).double().numpy()
    expected = Ridge(1.0, fit_intercept=False, solver="svd").fit(z, targets).coef_
    np.testing.assert_allclose(weight_of(received), expected, rtol=1e-4, atol=1e-5)
