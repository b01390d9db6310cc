"""The discriminant rule against scikit-learn's linear discriminant analysis, and where that does not run."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protosphere.prototypes.prediction import discriminant_scores, pooled_covariance
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
