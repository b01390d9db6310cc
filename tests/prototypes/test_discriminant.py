"""The discriminant rule against scikit-learn's linear discriminant analysis, and where that does not run."""

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protosphere.prototypes.prediction import (
    covariance_of_sums,
    discriminant_scores,
    oracle_approximating_shrinkage,
    pooled_covariance,
)
from protosphere.prototypes.prototype_set import PrototypeSet, class_means


def client(sizes, d=6, seed=0):
    """Correlated features of classes with these sizes (a size of 0: a class that the client lacks)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    centres = 2 * torch.randn(len(sizes), d, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), d, generator=generator, dtype=torch.float64)
    return noise @ mixing + centres[labels], labels


@pytest.mark.filterwarnings("ignore:Only one sample available")
@pytest.mark.parametrize("sizes", [(30, 12), (40, 5, 11), (20, 0, 9, 3), (3, 3, 2), (200, 1, 1)])
@pytest.mark.parametrize("d", [2, 6, 40])
def test_equals_scikit_learns(sizes, d):
    features, labels = client(sizes, d)
    means = class_means(features, labels, len(sizes))
    covariance = pooled_covariance(features, labels, means)
    z = client((50,) * len(sizes), d, seed=1)[0]
    scores = discriminant_scores(z, means, covariance, len(sizes))

    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(features.numpy(), labels.numpy())
    np.testing.assert_allclose(covariance.numpy(), oracle.covariance_, atol=1e-12)
    held = scores[:, means.labels]
    assert int(scores.isneginf().sum()) == scores.numel() - held.numel(), "absent classes never win"
    np.testing.assert_allclose(held.softmax(dim=1).numpy(), oracle.predict_proba(z.numpy()), atol=1e-9)
    assert scores.argmax(dim=1).tolist() == oracle.predict(z.numpy()).tolist()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (0, 1), (0, 0)])
def test_no_scatter_and_no_samples_give_the_identity_in_float64(sizes):
    features, labels = client(sizes)
    labels = labels.long()
    covariance = pooled_covariance(features.float(), labels, class_means(features.float(), labels, 3))
    assert torch.equal(covariance, torch.eye(6, dtype=torch.float64))


def test_one_class_is_always_that_class_in_float32_too():
    features, labels = client((0, 7))
    means = class_means(features, labels, 3)
    covariance = pooled_covariance(features, labels, means)
    assert discriminant_scores(100 * features, means, covariance, 3).argmax(dim=1).tolist() == [1] * 7
    narrow = pooled_covariance(features.float(), labels, class_means(features.float(), labels, 3))
    assert narrow.dtype == torch.float64
    torch.testing.assert_close(covariance, narrow, rtol=1e-5, atol=1e-5)


def test_more_dimensions_than_samples_and_constant_coordinates():
    features, labels = client((4, 3), d=30)
    features[:, ::2] = 1.0
    means = class_means(features, labels, 2)
    scores = discriminant_scores(features, means, pooled_covariance(features, labels, means), 2)
    assert scores.isfinite().all()
    assert torch.equal(scores.argmax(dim=1), labels)


def test_errors_say_what_is_missing():
    features, labels = client((5, 5))
    means = class_means(features, labels, 2)
    lone = PrototypeSet(means.labels[:1], means.vectors[:1])
    with pytest.raises(ValueError, match=r"class 1.*\[0\]"):
        pooled_covariance(features, labels, lone)
    with pytest.raises(ValueError, match="class counts"):
        discriminant_scores(features, means.without_counts(), torch.eye(6), 2)
    features[3, 1] = math.inf
    with pytest.raises(ValueError, match=r"not finite.*diverged"):
        pooled_covariance(features, labels, class_means(features, labels, 2))


@pytest.mark.parametrize(("count", "dim"), [(8, 20), (50, 20), (3000, 5)])
def test_the_shrinkage_that_fits_the_number_of_samples_is_scikit_learns(count, dim):
    rng = torch.Generator().manual_seed(count)
    mixing = torch.randn(dim, dim, generator=rng, dtype=torch.float64)
    points = torch.randn(count, dim, generator=rng, dtype=torch.float64) @ mixing
    values = torch.linalg.eigvalsh(points.T @ points / count)
    expected = OAS(assume_centered=True).fit(points.numpy()).shrinkage_
    assert oracle_approximating_shrinkage(values, count) == pytest.approx(expected, rel=1e-9)


def test_a_sphere_is_shrunk_whole():
    assert oracle_approximating_shrinkage(torch.full((4,), 0.3, dtype=torch.float64), 10) == 1.0


def test_of_sums_it_is_the_oas_covariance_of_all_residuals():
    rng = torch.Generator().manual_seed(7)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 12, generator=rng, dtype=torch.float64) * torch.linspace(0.2, 2, 12) + labels[:, None]
    sums = torch.stack([features[labels == j].sum(dim=0) for j in range(3)])
    residuals = features - (sums / 20)[labels]
    found = covariance_of_sums(sums, torch.full((3,), 20.0), features.T @ features, None)
    expected = OAS(assume_centered=True).fit(residuals.numpy()).covariance_
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-9)
