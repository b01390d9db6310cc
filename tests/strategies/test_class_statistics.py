"""FedNCM, FedCGS, Fed3R and FedCOF: each classifier is that of an independent computation on all samples together,
however they lie among clients; what the family shares: test_one_exchange.py."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch.nn.functional import normalize, one_hot

from protosphere.prototypes.release import B, contributions
from protosphere.strategies.fed3r import ridge
from protosphere.strategies.fedcof import scatter_of
from tests.strategies.in_space import D, K, N, exchanged, halves, partitions, samples, unit, upload_of

KINDS = partitions(samples()[1])


def of_nearest_mean(clients, new):
    """FedNCM: cosines with the mean of all samples of a class."""
    z, labels = (torch.cat(parts) for parts in zip(*clients, strict=True))
    means = torch.stack([z[labels == label].mean(dim=0) for label in range(K)])
    return new @ normalize(means, dim=1).T


def of_ridge(clients, new, strength):
    """Fed3R: scikit-learn's ridge regression on all samples."""
    z, labels = (torch.cat(parts) for parts in zip(*clients, strict=True))
    return new @ torch.tensor(of_scikit_learn(z, labels, strength)).T


def of_scikit_learn(z, labels, strength):
    """W^T of all samples together, (K, d)."""
    targets = one_hot(labels, K).double().numpy()
    # of its solvers the one that does not square the condition
    return Ridge(strength, fit_intercept=False, solver="svd").fit(z.numpy(), targets).coef_


def of_scattered_means(clients, new, gamma):
    """FedCOF: the paper's algorithm by loops."""
    clients = [(z.numpy(), labels.numpy()) for z, labels in clients]
    samples_of = {label: [z[y == label] for z, y in clients if (y == label).any()] for label in range(K)}
    everything = np.concatenate([z for z, _ in clients])
    together = {label: np.concatenate(own) for label, own in samples_of.items()}
    variance = sum(((z - z.mean(axis=0)) ** 2).sum() for z in together.values()) / (len(everything) * D)
    gram = np.outer(everything.sum(axis=0), everything.sum(axis=0)) / len(everything)
    for label, own in samples_of.items():
        mean, covariance = together[label].mean(axis=0), gamma * variance * np.eye(D)
        for z in own:
            deviation = z.mean(axis=0) - mean
            covariance += len(z) * np.outer(deviation, deviation) / max(len(own) - 1, 1)
        gram += (len(together[label]) - 1) * covariance
    sums = np.stack([z.sum(axis=0) for z in together.values()])
    weight = np.linalg.solve(gram, sums.T).T
    return new @ torch.tensor(weight / np.linalg.norm(weight, axis=1, keepdims=True)).T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "settings", "oracle"),
    [
        ("fedncm", {}, of_nearest_mean),
        ("fed3r", {"fed3r.ridge": 1.0}, lambda clients, new: of_ridge(clients, new, 1.0)),
        ("fedcof", {"fedcof.gamma": 0.01}, lambda clients, new: of_scattered_means(clients, new, 0.01)),
        ("fedcof", {"fedcof.gamma": 10.0}, lambda clients, new: of_scattered_means(clients, new, 10.0)),
    ],
)
def test_scores_are_those_of_all_samples_together_however_they_lie(method, settings, oracle, kind):
    features, labels = samples()
    new = unit(samples(seed=1)[0])
    received, objective, _ = exchanged(method, KINDS[kind], features, labels, **settings)
    clients = [(unit(features[indices]), labels[indices]) for indices in KINDS[kind] if len(indices)]
    # means and weights cross as float32
    np.testing.assert_allclose(objective.encoded_scores(received, new), oracle(clients, new), atol=1e-5)


@pytest.mark.parametrize("kind", ["in turn", "by class", "unevenly"])
def test_fedcgs_judges_as_scikit_learn_s_discriminant_however_samples_are_dealt(kind):
    features, labels = samples()
    received, objective, _ = exchanged("fedcgs", KINDS[kind], features, labels, **{"fedcgs.shrinkage": 0.1})
    # directions as they are added up
    known, new = (contributions(each)[:, :-1].double() / B for each in (features, samples(seed=1)[0]))

    found = torch.softmax(objective.encoded_scores(received, new), dim=1)

    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(known.numpy(), labels)
    np.testing.assert_allclose(found, theirs.predict_proba(new.numpy()), atol=2e-5)


# --- Fed3R ------------------------------------------------------------------------------------------------------


def sums_of(z, labels):
    """G and B^T of these samples, by a loop."""
    gram, targets = torch.zeros(D, D, dtype=torch.float64), torch.zeros(K, D, dtype=torch.float64)
    for row, label in zip(z, labels, strict=True):
        gram += torch.outer(row, row)
        targets[label] += row
    return gram, targets


def weight_of(received):
    """W^T as it came, without the factor that keeps a message within its bound."""
    tensors = received["classifier"].tensors
    return float((tensors["known"].max() - 1).exp()) * tensors["weight"].double()


@pytest.mark.parametrize("strength", [0.01, 100.0])
def test_sums_give_the_ridge_regression_of_all_samples_to_1e_10(strength):
    features, labels = samples()
    z = unit(features)
    np.testing.assert_allclose(
        ridge(*sums_of(z, labels), strength), of_scikit_learn(z, labels, strength), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("strength", "exact"), [(0.01, 3e-6), (1.0, 3e-7)])
def test_over_the_wire_it_is_exact_to_float32_times_the_condition(kind, strength, exact):
    """The condition of G + lambda I is some hundreds here, where features of few dimensions fill them all."""
    features, labels = samples()
    received, _, _ = exchanged("fed3r", KINDS[kind], features, labels, **{"fed3r.ridge": strength})
    expected = of_scikit_learn(unit(features), labels, strength)
    error = np.abs(weight_of(received).numpy() - expected).max() / np.abs(expected).max()
    gram, _ = sums_of(unit(features), labels)
    condition = np.linalg.cond(gram + strength * torch.eye(D, dtype=torch.float64))
    assert error < min(exact, 2.0**-22 * condition)


@pytest.mark.parametrize("radius", [0.5, 20.0])
def test_features_within_a_radius_give_the_ridge_regression_of_these(radius):
    features, labels = samples()
    settings = {"encoder-radius": radius, "fed3r.ridge": 1.0}
    received, _, _ = exchanged("fed3r", KINDS["unevenly"], features, labels, **settings)
    z = features / features.norm(dim=1, keepdim=True).clamp_min(radius)
    np.testing.assert_allclose(weight_of(received), of_scikit_learn(z, labels, 1.0), rtol=1e-4, atol=1e-5)


def test_a_class_that_the_client_does_not_have_is_refused():
    features, labels = samples()
    server, objective = halves("fed3r", (N,))
    server.identities = {0: server.identities[0].__class__(0, 1, rows=(N, 0, 0), classes=(0, 1, 2))}
    assert "has no training sample" in server.contradiction(0, upload_of(objective, features, labels))


# --- FedCOF -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5,) * 8, (1, 2, 40), (3, 3), (1,) * 30], ids=["alike", "unlike", "two", "one each"])
def test_over_random_splits_the_scatter_has_the_covariance_as_its_mean(sizes):
    """Of a known Gaussian, within five standard errors in each direction."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(3, 3))
    covariance, draws = mixing @ mixing.T, 4000
    means = np.stack([random.normal(size=(draws, size, 3)).mean(axis=1) for size in sizes], axis=1) @ mixing.T + 7
    found = [scatter_of(each, torch.tensor(sizes)).numpy() for each in torch.from_numpy(means)]
    error = np.std(found, axis=0) / draws**0.5
    assert (np.abs(np.mean(found, axis=0) - covariance) < 5 * error).all()
    # so many draws would tell a factor of (K_c - 1) / K_c
    biased = (len(sizes) - 1) / len(sizes) * np.mean(found, axis=0)
    assert not (np.abs(biased - covariance) < 5 * error).all()
