"""Bhattacharyya distances against scipy's integrals and loops; fusion against a naive Algorithm 1 and direct sums."""

import math

import numpy as np
import pytest
import torch

from protosphere.prototypes import fusion
from protosphere.prototypes.fusion import bhattacharyya, fuse
from protosphere.prototypes.mixture_set import MixtureSet


def gaussians(rows, dim, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    means = spread * torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    return means, torch.rand(rows, dim, generator=generator, dtype=torch.float64) * 2 + 0.1


def equation_8(mean, variance, other_mean, other_variance):
    pooled = (variance + other_variance) / 2
    determinants = np.linalg.slogdet(np.diag(variance))[1] + np.linalg.slogdet(np.diag(other_variance))[1]
    shape = np.linalg.slogdet(np.diag(pooled))[1] - determinants / 2
    apart = mean - other_mean
    return apart @ np.linalg.inv(np.diag(pooled)) @ apart / 8 + shape / 2


def uploads(clients=6, classes=3, dim=4, seed=0, spread=1.0):
    """Mixtures of one to three components by partition; class 0 is everybody's, the last one nobody's."""
    rng = np.random.default_rng(seed)
    result = {}
    for partition in range(clients):
        held = [0, *[label for label in range(1, classes - 1) if rng.random() < 0.7]]
        sizes = [int(rng.integers(1, 4)) for _ in held]
        labels = torch.tensor(np.repeat(held, sizes))
        weights = np.concatenate([rng.dirichlet(np.ones(size) * 3) for size in sizes])
        counts = torch.tensor(np.repeat(rng.integers(1, 50, len(held)), sizes))
        means, variances = gaussians(len(labels), dim, seed=100 * seed + partition, spread=spread)
        result[partition] = MixtureSet(labels, means, variances, torch.tensor(weights), counts)
    return result


def rows_of(mixtures, label):
    """(weight, partition, row, mean, variance) of a class, in the order of seeds."""
    rows = []
    for partition, each in mixtures.items():
        own = (each.labels == label).nonzero().flatten().tolist()
        for row, index in enumerate(own):
            rows.append(
                (float(each.weights[index]), partition, row, each.means[index].numpy(), each.variances[index].numpy())
            )
    return sorted(rows, key=lambda each: (-each[0], each[1], each[2]))


def naive_clusters(rows, limit):
    """Algorithm 1 in words: the next seed, then candidates one at a time, each near every member."""
    free, clusters = list(rows), []
    while free:
        cluster = [free.pop(0)]
        for candidate in list(free):
            if all(equation_8(*candidate[3:], *member[3:]) < limit for member in cluster):
                cluster.append(candidate)
                free = [each for each in free if each is not candidate]
        clusters.append(cluster)
    return clusters


@pytest.mark.parametrize("dim", [1, 2, 3, 6, 8, 50])
@pytest.mark.parametrize("block", [1, 100, 2**17])
def test_equals_equation_8_pair_by_pair_whatever_the_block(monkeypatch, dim, block):
    monkeypatch.setattr(fusion, "BLOCK_ENTRIES", block)
    one, other = gaussians(7, dim), gaussians(5, dim, seed=1)
    expected = [
        [equation_8(*np.stack(a), *np.stack(b)) for b in zip(*other, strict=True)] for a in zip(*one, strict=True)
    ]
    np.testing.assert_allclose(bhattacharyya(*one, *other), expected, rtol=1e-12)
    narrow = bhattacharyya(*(part.float() for part in (*one, *other)))
    assert narrow.dtype == torch.float32
    np.testing.assert_allclose(narrow, expected, rtol=1e-4)


def test_distances_of_extreme_variances_are_right():
    variances = torch.tensor([[1e-45], [1e-45], [3e38], [3e38]], dtype=torch.float64)
    means = torch.tensor([[0.0], [1e-22], [0.0], [1e19]], dtype=torch.float64)
    rows = list(zip(means.numpy(), variances.numpy(), strict=True))
    # of equal dimensions each adds as much as one
    expected = [[8 * equation_8(*a, *b) for b in rows] for a in rows]
    eight = means.expand(4, 8), variances.expand(4, 8)
    np.testing.assert_allclose(bhattacharyya(*eight, *eight), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 1.2, 4.0, math.inf])
def test_equals_the_naive_algorithm_and_the_moments_of_the_pooled_components(threshold):
    mixtures = uploads(clients=8, spread=0.7)
    fused = fuse(mixtures, threshold, per_dimension=False)
    assert fused.classes().tolist() == [0, 1]
    assert fused.counts is None
    for label in (0, 1):
        rows = rows_of(mixtures, label)
        clusters = naive_clusters(rows, threshold)
        own = fused.labels == label
        assert int(own.sum()) == len(clusters)
        whole = sum(row[0] for row in rows)
        parts = zip(clusters, fused.weights[own], fused.means[own], fused.variances[own], strict=True)
        for members, weight, mean, variance in parts:
            weights = np.array([member[0] for member in members])
            means, variances = np.stack([each[3] for each in members]), np.stack([each[4] for each in members])
            assert float(weight) == pytest.approx(weights.sum() / whole, rel=1e-12)
            expected = (weights[:, None] * means).sum(axis=0) / weights.sum()
            np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-13)
            second = (weights[:, None] * (variances + means**2)).sum(axis=0) / weights.sum()
            np.testing.assert_allclose(variance, second - expected**2, rtol=0, atol=1e-12)


def test_ties_go_by_client_and_row():
    # four equal weights on a line of spacing 1: the seed alone decides how they pair
    def single(*places):
        means = torch.tensor(places, dtype=torch.float64).unsqueeze(1)
        weights = torch.full((len(places),), 1 / len(places), dtype=torch.float64)
        return MixtureSet(torch.zeros(len(places), dtype=torch.int64), means, torch.ones_like(means), weights)

    first_left = fuse({2: single(2.0, 3.0), 1: single(0.0, 1.0)}, 0.2)
    assert first_left.means.flatten().tolist() == [0.5, 2.5]
    first_inner = fuse({1: single(1.0, 0.0), 2: single(2.0, 3.0)}, 0.2)
    assert first_inner.means.flatten().tolist() == [0.5, 2.5]
    second_inner = fuse({1: single(1.0, 3.0), 2: single(2.0, 0.0)}, 0.2)
    assert second_inner.means.flatten().tolist() == [1.5, 3.0, 0.0]


def test_the_threshold_counts_per_dimension_or_for_the_sum():
    mixtures = uploads(dim=8, clients=8, spread=0.7)
    assert fuse(mixtures, 0.15).labels.tolist() == fuse(mixtures, 1.2, per_dimension=False).labels.tolist()
    assert len(fuse(mixtures, 1.2)) < len(fuse(mixtures, 1.2, per_dimension=False))
