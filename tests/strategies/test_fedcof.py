"""FedCOF: the scatter of clients' means is a class's covariance without bias; its classifier is the paper's formula by
loops; what it shares with other methods of one exchange: test_one_exchange.py."""

import numpy as np
import pytest
import torch

from protosphere.strategies.fedcof import scatter_of
from tests.strategies.in_space import D, K, exchanged, partitions, samples, unit


def by_loops(clients, gamma, classes=K, dim=D):
    """W^T of clients' (z, labels), each w_c of length 1, as the paper's algorithm goes."""
    gram, total, everything, sums = np.zeros((dim, dim)), 0, np.zeros(dim), np.zeros((classes, dim))
    variance = 0.0
    for label in range(classes):
        own = [z[y == label] for z, y in clients if (y == label).any()]
        if own:
            together = np.concatenate(own)
            variance += ((together - together.mean(axis=0)) ** 2).sum() / (sum(len(z) for z, _ in clients) * dim)
    for label in range(classes):
        own = [z[y == label] for z, y in clients if (y == label).any()]
        number = sum(map(len, own))
        if not number:
            continue
        sums[label] = sum(z.sum(axis=0) for z in own)
        covariance = gamma * variance * np.eye(dim)
        for z in own:
            deviation = z.mean(axis=0) - sums[label] / number
            covariance += len(z) * np.outer(deviation, deviation) / max(len(own) - 1, 1)
        gram += (number - 1) * covariance
        total, everything = total + number, everything + sums[label]
    gram += np.outer(everything, everything) / total
    weight = np.linalg.solve(gram, sums.T).T
    return weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize("gamma", [0.01, 10.0])
@pytest.mark.parametrize("kind", partitions(samples()[1]))
def test_the_classifier_is_the_paper_s_formula_by_loops(kind, gamma):
    features, labels = samples()
    lists = partitions(labels)[kind]
    received, objective, _ = exchanged("fedcof", lists, features, labels, **{"fedcof.gamma": gamma})
    clients = [(unit(features[indices]).numpy(), labels[indices].numpy()) for indices in lists]
    new = unit(samples(seed=1)[0])
    expected = new.numpy() @ by_loops(clients, gamma).T
    np.testing.assert_allclose(objective.encoded_scores(received, new), expected, atol=1e-5)


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
