"""The discriminant of a client's own samples: scikit-learn's, with its shrinkage chosen on validation samples."""

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protosphere.prototypes.own_discriminant import SHRINKAGES, USUAL, own_discriminant

K, D = 5, 6
NOTHING = torch.empty(0, D, dtype=torch.float64), torch.empty(0, dtype=torch.int64)


def samples(n, seed=0, classes=(0, 1, 3), spread=1.0):
    """n features of Gaussian classes with one covariance, and their labels."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(K, D, dtype=torch.float64, generator=torch.Generator().manual_seed(99))
    mixing = torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(98))
    labels = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=rng)]
    noise = torch.randn(n, D, dtype=torch.float64, generator=rng) @ mixing
    return centres[labels] + spread * noise, labels


def sklearns(features, labels, shrinkage):
    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features.numpy(), labels.numpy())


def test_without_validation_samples_it_is_scikit_learns_of_the_usual_shrinkage():
    features, labels = samples(60)
    own = own_discriminant(features, labels, K, *NOTHING)
    assert own.shrinkage == USUAL
    asked, _ = samples(200, seed=1)
    scores = own.scores(asked)
    assert (scores[:, [2, 4]] == -torch.inf).all()
    expected = torch.from_numpy(sklearns(features, labels, USUAL).predict_log_proba(asked.numpy()))
    log_posterior = torch.log_softmax(scores, dim=1)[:, [0, 1, 3]]
    torch.testing.assert_close(log_posterior, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_of_the_shrinkages_it_takes_the_one_that_is_right_most_often_and_of_equals_the_nearest_to_the_usual(seed):
    features, labels = samples(12, seed)
    validation = samples(40, seed + 100)
    own = own_discriminant(features, labels, K, *validation)
    right = {
        s: (sklearns(features, labels, s).predict(validation[0].numpy()) == validation[1].numpy()).sum()
        for s in SHRINKAGES
    }
    assert right[own.shrinkage] == max(right.values())
    distances = [abs(torch.tensor(s / USUAL).log()) for s in SHRINKAGES if right[s] == max(right.values())]
    assert abs(torch.tensor(own.shrinkage / USUAL).log()) == min(distances)


def test_the_choice_is_made_on_validation_samples():
    chosen = {own_discriminant(*samples(12, seed), K, *samples(40, seed + 100)).shrinkage for seed in range(12)}
    assert len(chosen) > 1


def test_scores_without_priors_are_equal_for_classes_that_the_means_cannot_tell_apart():
    features = torch.tensor([[0.0, 1], [0, -1], [1, 0], [1, 0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    own = own_discriminant(features, labels, 2, NOTHING[0][:, :2], NOTHING[1])
    middle = (features[:3].mean(dim=0) + features[3]) / 2
    without, with_priors = own.class_scores(middle[None]), own.scores(middle[None])
    assert without[0, 0] == pytest.approx(without[0, 1].item())
    assert (with_priors[0, 0] - with_priors[0, 1]).item() == pytest.approx(torch.tensor(3.0).log().item())


def test_one_sample_a_class_has_no_scatter_and_gives_the_nearest_one():
    features = torch.eye(D, dtype=torch.float64)[:3]
    own = own_discriminant(features, torch.tensor([0, 2, 4]), K, *NOTHING)
    assert own.scores(features).argmax(dim=1).tolist() == [0, 2, 4]


def test_without_samples_there_is_none():
    assert own_discriminant(*NOTHING, K, *samples(3)) is None
