"""Batched EM against scikit-learn with the same start, torch's densities and closed forms; pseudo-features."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from protosphere.prototypes.mixture import fit_class_mixtures, sample, sample_counts
from protosphere.prototypes.mixture_set import MixtureSet

SIZES = {0: 300, 2: 7, 3: 40, 11: 120, 12: 5}


def blobs(sizes=None, dim=6, places=3, apart=2.0, seed=0):
    """Samples of classes with `places` blobs each, in shuffled order; dimensions differ in scale and place."""
    rng = np.random.default_rng(seed)
    features, labels = [], []
    for label, size in (SIZES if sizes is None else sizes).items():
        centres = apart * rng.standard_normal((places, dim))
        widths = rng.uniform(0.3, 1.5, (places, dim))
        which = rng.integers(places, size=size)
        features.append(centres[which] + widths[which] * rng.standard_normal((size, dim)))
        labels.append(np.full(size, label))
    order = rng.permutation(sum(len(each) for each in labels))
    scale = np.logspace(-1, 1, dim)
    return torch.tensor(np.concatenate(features)[order] * scale + 3), torch.tensor(np.concatenate(labels)[order])


def of_class(mixtures, label):
    """The mixture of one class alone."""
    own = mixtures.labels == label
    counts = None if mixtures.counts is None else mixtures.counts[own]
    return MixtureSet(mixtures.labels[own], mixtures.means[own], mixtures.variances[own], mixtures.weights[own], counts)


def by_scikit_learn(rows, start, tolerance, max_iterations, spherical=False):
    """GaussianMixture from the same start with the same floor, for one class."""
    floor = max(1e-6 * float(rows.var(dim=0, correction=0).mean()), 1e-12)
    model = GaussianMixture(
        len(start),
        covariance_type="spherical" if spherical else "diag",
        reg_covar=floor,
        tol=tolerance,
        max_iter=max_iterations,
        weights_init=start.weights.numpy(),
        means_init=start.means.numpy(),
        precisions_init=1 / (start.variances[:, 0] if spherical else start.variances).numpy(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows.numpy())


def density(own):
    """The distribution of one class by torch."""
    return MixtureSameFamily(Categorical(own.weights), Independent(Normal(own.means, own.variances.sqrt()), 1))


def assert_alike(one, other, rtol=1e-9):
    assert torch.equal(one.labels, other.labels)
    for part in ("means", "variances", "weights"):
        torch.testing.assert_close(getattr(one, part), getattr(other, part), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("components", [1, 2, 4])
@pytest.mark.parametrize("max_iterations", [1, 2, 5, 200])
def test_equals_scikit_learn_from_the_same_start_after_any_number_of_iterations(components, max_iterations, spherical):
    features, labels = blobs()
    given = {"spherical": spherical}
    start = fit_class_mixtures(features, labels, components, seed=1, max_iterations=0, **given).mixtures
    fit = fit_class_mixtures(features, labels, components, seed=9, start=start, max_iterations=max_iterations, **given)
    classes = fit.mixtures.classes().tolist()
    assert classes == list(SIZES)
    for position, label in enumerate(classes):
        rows, of_start = features[labels == label], of_class(start, label)
        expected = by_scikit_learn(rows, of_start, 1e-3, max_iterations, spherical)
        own = of_class(fit.mixtures, label)
        np.testing.assert_allclose(own.means, expected.means_, rtol=1e-8, atol=1e-9)
        variances = expected.covariances_[:, None] if spherical else expected.covariances_
        np.testing.assert_allclose(own.variances, np.broadcast_to(variances, own.variances.shape), rtol=1e-7)
        np.testing.assert_allclose(own.weights, expected.weights_, rtol=1e-9)
        assert float(fit.log_likelihood[position]) == pytest.approx(expected.lower_bound_, abs=1e-7)
        assert int(fit.iterations[position]) == expected.n_iter_
        assert bool(fit.converged[position]) == expected.converged_


@pytest.mark.parametrize("seed", range(3))
def test_log_likelihood_never_falls_and_is_that_of_the_mixture_before(seed):
    """Not by more than 1e-7: with the floor added an M-step misses its maximum by about d/4·(floor/variance)² a
    sample; and where a component holds one sample its variance is the floor, and squares of 1e6 variances cancel.
    """
    features, labels = blobs(seed=seed)
    steps = [
        fit_class_mixtures(features, labels, 3, seed, tolerance=0, max_iterations=iterations)
        for iterations in range(12)
    ]
    for before, after in itertools.pairwise(steps):
        assert bool((after.log_likelihood >= before.log_likelihood - 1e-7).all())
        for position, label in enumerate(SIZES):
            expected = density(of_class(before.mixtures, label)).log_prob(features[labels == label]).mean()
            assert float(after.log_likelihood[position]) == pytest.approx(float(expected), abs=1e-7)
    assert bool((steps[-1].log_likelihood > steps[1].log_likelihood + 1e-3).any())
    assert steps[0].log_likelihood.tolist() == [-np.inf] * len(SIZES)


def test_the_start_finds_separate_blobs_and_has_their_moments():
    features, labels = blobs({1: 60, 5: 90}, apart=200.0, places=4)
    start = fit_class_mixtures(features, labels, 4, seed=0, max_iterations=0).mixtures
    for label in (1, 5):
        rows, own = features[labels == label], of_class(start, label)
        # the nearest mean tells the blobs apart, which are hundreds of widths from each other
        held = torch.cdist(rows, own.means).argmin(dim=1)
        floor = 1e-6 * rows.var(dim=0, correction=0).mean()
        for component in range(4):
            blob = rows[held == component]
            torch.testing.assert_close(own.weights[component], torch.tensor(len(blob) / len(rows)).double())
            torch.testing.assert_close(own.means[component], blob.mean(dim=0))
            torch.testing.assert_close(own.variances[component], blob.var(dim=0, correction=0) + floor)
        widths = (own.variances - floor).sqrt() / torch.logspace(-1, 1, 6, dtype=torch.float64)
        assert widths.max() < 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_fewer_samples_than_components_give_a_component_a_sample(samples, dtype):
    features = torch.randn(samples, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3 + 7
    fit = fit_class_mixtures(features, torch.full((samples,), 4), components=8, seed=0, dtype=dtype)
    assert fit.converged.all()
    mixtures = fit.mixtures
    assert mixtures.labels.tolist() == [4] * samples
    assert mixtures.counts.tolist() == [samples] * samples
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    order = torch.cdist(mixtures.means, features).argmin(dim=1)
    assert sorted(order.tolist()) == list(range(samples))
    torch.testing.assert_close(mixtures.means, features[order], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mixtures.weights, torch.full((samples,), 1 / samples).double())
    floor = max(1e-6 * float(features.var(dim=0, correction=0).mean()), 1e-12)
    slack = 1e-9 * floor if dtype == torch.float64 else 10 * floor
    np.testing.assert_allclose(mixtures.variances, np.full((samples, 5), floor), rtol=0, atol=slack)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e5])
def test_identical_samples_are_one_component_with_the_least_variance(value, dtype):
    features = torch.full((50, 3), value, dtype=torch.float64)
    features[:, 1] *= 1 / 3
    fit = fit_class_mixtures(features, torch.zeros(50, dtype=torch.int64), components=4, seed=0, dtype=dtype)
    torch.testing.assert_close(fit.mixtures.means, features[:1], rtol=1e-12, atol=0)
    assert fit.mixtures.weights.tolist() == [1.0]
    np.testing.assert_allclose(fit.mixtures.variances, np.full((1, 3), 1e-12), rtol=1e-3)
    assert fit.log_likelihood.isfinite().all()


@pytest.mark.parametrize("seed", range(8))
def test_float32_keeps_variances_above_zero_where_squares_cancel(seed):
    # one of 64 dimensions is far apart, so that its squares' rounding is above the floor and may be below zero
    rng = np.random.default_rng(seed)
    features = torch.zeros(144, 64)
    features[:, 0] = torch.tensor(3333 * rng.random(3)[rng.integers(3, size=144)])
    fit = fit_class_mixtures(features, torch.zeros(144, dtype=torch.int64), 3, seed=0, dtype=torch.float32)
    assert fit.converged.all()
    places = fit.mixtures.means[:, 0].sort().values
    torch.testing.assert_close(places, features[:, 0].unique(), rtol=1e-5, atol=0)
    assert (fit.mixtures.variances[:, 0] < 1e-5 * features[:, 0].var()).all()


def test_moving_the_samples_far_away_moves_the_means_alone():
    features, labels = blobs()
    shift = torch.tensor([1e4, -3.0, 0.0, 5e3, 1.0, -1e4], dtype=torch.float64)
    here, there = (fit_class_mixtures(each, labels, 3, seed=0).mixtures for each in (features, features + shift))
    torch.testing.assert_close(there.means, here.means + shift, rtol=1e-11, atol=1e-8)
    torch.testing.assert_close(there.variances, here.variances, rtol=1e-6, atol=0)


def test_classes_do_not_depend_on_the_others_in_the_batch():
    features, labels = blobs()
    together = fit_class_mixtures(features, labels, 3, seed=5)
    for position, label in enumerate(SIZES):
        own = labels == label
        alone = fit_class_mixtures(features[own], labels[own], 3, seed=5)
        assert_alike(alone.mixtures, of_class(together.mixtures, label))
        assert int(alone.iterations) == int(together.iterations[position])


def test_the_seed_alone_decides_and_arguments_are_not_modified():
    features, labels = blobs()
    before = features.clone(), labels.clone()
    torch.manual_seed(0)
    one = fit_class_mixtures(features, labels, 3, seed=1)
    torch.rand(3)
    other = fit_class_mixtures(features, labels, 3, seed=1)
    for part in ("labels", "means", "variances", "weights", "counts"):
        assert torch.equal(getattr(one.mixtures, part), getattr(other.mixtures, part))
    assert not torch.equal(one.mixtures.means, fit_class_mixtures(features, labels, 3, seed=2).mixtures.means)
    assert torch.equal(features, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_component_that_loses_all_samples_is_left_out(dtype):
    features, labels = blobs({0: 60})
    two = fit_class_mixtures(features, labels, 2, seed=0, max_iterations=0).mixtures
    lost = MixtureSet(
        torch.zeros(3, dtype=torch.int64),
        torch.cat([two.means[:1], torch.full((1, 6), 1e6, dtype=torch.float64), two.means[1:]]),
        torch.cat([two.variances[:1], torch.ones(1, 6, dtype=torch.float64), two.variances[1:]]),
        torch.cat([two.weights[:1] / 2, torch.tensor([0.5], dtype=torch.float64), two.weights[1:] / 2]),
    )
    found = fit_class_mixtures(features, labels, 3, seed=0, start=lost, dtype=dtype)
    expected = fit_class_mixtures(features, labels, 2, seed=0, start=two, dtype=dtype)
    assert_alike(found.mixtures, expected.mixtures, rtol=1e-9 if dtype == torch.float64 else 1e-4)
    assert float(found.mixtures.weights.sum()) == pytest.approx(1, abs=1e-12)


def test_iterations_that_run_out_are_not_called_converged_and_no_samples_are_no_classes():
    features, labels = blobs({0: 100, 1: 2})
    fit = fit_class_mixtures(features.requires_grad_(), labels, 4, seed=0, max_iterations=2)
    assert fit.iterations.tolist() == [2, 2]
    assert fit.converged.tolist() == [False, True]
    assert not fit.mixtures.means.requires_grad
    none = fit_class_mixtures(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 4, seed=0)
    assert (len(none.mixtures), none.mixtures.dim, len(none.iterations), len(none.log_likelihood)) == (0, 3, 0, 0)
    assert none.converged.dtype == torch.bool


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cuda_finds_what_the_cpu_finds(dtype):
    features, labels = blobs()
    options = {"components": 3, "seed": 0, "tolerance": 0, "max_iterations": 8, "dtype": dtype}
    cpu = fit_class_mixtures(features, labels, **options)
    cuda = fit_class_mixtures(features.cuda(), labels.cuda(), **options)
    assert cuda.mixtures.means.is_cuda
    assert_alike(cuda.mixtures.to("cpu"), cpu.mixtures, rtol=1e-8 if dtype == torch.float64 else 1e-2)
    drawn, expected = (sample(cpu.mixtures, 5, torch.Generator().manual_seed(0), device) for device in ("cuda", "cpu"))
    assert torch.equal(drawn[0].cpu(), expected[0])


def test_pseudo_features_are_balanced_seeded_and_follow_the_mixture():
    features, labels = blobs({1: 90, 7: 30}, apart=6.0)
    mixtures = fit_class_mixtures(features, labels, 3, seed=0).mixtures
    drawn, classes = sample(mixtures, 20000, torch.Generator().manual_seed(4))
    assert classes.tolist() == [1] * 20000 + [7] * 20000
    assert (drawn.shape, drawn.dtype) == ((40000, 6), torch.float64)
    for label in (1, 7):
        own, rows = of_class(mixtures, label), drawn[classes == label]
        mean = own.weights @ own.means
        variance = own.weights @ (own.variances + own.means**2) - mean**2
        # five standard errors of a mean; a second moment's spread is a few times the first's
        assert ((rows.mean(dim=0) - mean).abs() < 5 * (variance / 20000).sqrt()).all()
        np.testing.assert_allclose(rows.var(dim=0), variance, rtol=0.1)
        nearest = density(own).component_distribution.log_prob(rows[:, None]).add(own.weights.log()).argmax(dim=1)
        shares = torch.bincount(nearest, minlength=3) / 20000
        torch.testing.assert_close(shares.double(), own.weights, rtol=0, atol=0.02)
    again, _ = sample(mixtures, 20000, torch.Generator().manual_seed(4))
    assert torch.equal(again, drawn)
    assert not torch.equal(sample(mixtures, 20000, torch.Generator().manual_seed(5))[0], drawn)


def test_of_numbers_by_class_as_many_are_drawn_and_of_equal_ones_the_same():
    features, labels = blobs()
    mixtures = fit_class_mixtures(features, labels, 3, seed=0).mixtures
    numbers = torch.tensor([4, 0, 7, 1, 2])
    drawn, classes = sample_counts(mixtures, numbers, torch.Generator().manual_seed(5))
    assert classes.tolist() == mixtures.classes().repeat_interleave(numbers).tolist()
    assert drawn.shape == (14, mixtures.dim)
    # each near its own class's samples: thrice their largest distance from the mean
    for label in classes.unique():
        rows = features[labels == label]
        distances = (drawn[classes == label] - rows.mean(dim=0)).norm(dim=1)
        assert float(distances.max()) < 3 * float((rows - rows.mean(dim=0)).norm(dim=1).max())
    alike = sample_counts(mixtures, torch.full((5,), 6), torch.Generator().manual_seed(5))
    assert all(map(torch.equal, alike, sample(mixtures, 6, torch.Generator().manual_seed(5))))
