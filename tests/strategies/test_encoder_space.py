"""The pool of a private model and a discriminant, and what the discriminant weighs in it."""

import numpy as np
import pytest
import torch

from protosphere.strategies.encoder_space import DOUBT, PRIOR, choose_weight, directions, opinion_pool

K = 4
COUNTS = torch.tensor([10.0, 10, 10, 10], dtype=torch.float64)


def log_odds(labels, right):
    """Scores by which a share of the samples is right, sure of itself."""
    rng = torch.Generator().manual_seed(len(labels))
    shifted = torch.where(torch.rand(len(labels), generator=rng) < right, labels, (labels + 1) % K)
    return 3.0 * torch.nn.functional.one_hot(shifted, K).double()


def pool_of(model, space):
    return lambda weight: opinion_pool(model, space, COUNTS, weight)


def test_it_is_the_most_likely_of_the_tenths_under_its_prior_by_a_naive_search():
    labels = torch.randint(K, (50,), generator=torch.Generator().manual_seed(1))
    model, space = log_odds(labels, 0.8), log_odds(labels[:50], 0.6)
    pool = pool_of(model, space)
    likelihoods = []
    for tenths in range(11):
        w, log_likelihood = tenths / 10, 0.0
        for row, label in zip(pool(w).numpy(), labels.tolist(), strict=True):
            probability = np.exp(row[label]) / np.exp(row).sum()
            log_likelihood += np.log((1 - DOUBT) * probability + DOUBT / K)
        likelihoods.append(log_likelihood - PRIOR * (2 * w - 1) ** 2)
    assert choose_weight(pool, labels) == np.argmax(likelihoods) / 10


def test_few_samples_move_it_little_and_none_not_at_all():
    labels = torch.tensor([2])
    right, wrong = log_odds(labels, 1.1), log_odds(labels, -1)
    assert 0.5 < choose_weight(pool_of(wrong, right), labels) < 1
    nothing = torch.zeros(0, K, dtype=torch.float64)
    assert choose_weight(pool_of(nothing, nothing), labels[:0]) == 0.5


def test_one_sample_of_which_the_space_is_wrongly_sure_does_not_silence_it():
    labels = torch.tensor([1, 2, 0])
    sure = 500 * torch.nn.functional.one_hot(torch.tensor([1, 2, 3]), K).double()
    unsure = torch.zeros(3, K, dtype=torch.float64)
    assert choose_weight(pool_of(unsure, sure), labels) >= 0.3


def test_within_a_radius_lengths_count_and_beyond_it_vectors_are_unit_vectors():
    features = torch.tensor([[3.0, 4], [0.3, 0.4], [30, 40], [0, 0], [torch.nan, torch.nan]])
    z = directions(features, 10.0)
    assert z.dtype == torch.float64
    torch.testing.assert_close(z, torch.tensor([[0.3, 0.4], [0.03, 0.04], [0.6, 0.8], [0, 0], [0, 0]]).double())
    assert directions(features).norm(dim=1).tolist() == pytest.approx([1, 1, 1, 0, 0])
    # a radius below every length is none
    torch.testing.assert_close(directions(features, 1e-9), directions(features))


def test_a_model_that_has_diverged_leaves_the_answer_to_the_space():
    labels = torch.arange(K)
    of_space = log_odds(labels, 1.1)
    of_model = of_space.roll(1, dims=1)
    of_model[2, 0] = torch.nan
    of_model[3, 1] = torch.inf
    pooled = opinion_pool(of_model, of_space, COUNTS, 0.5)
    assert bool(pooled.isfinite().all())
    assert pooled[2:].argmax(dim=1).tolist() == [2, 3]
