"""FedPFT: its mixtures are scikit-learn's, its draws have their moments, its head is the logistic regression on the
draws; what is told of single samples; what it shares with other methods of one exchange: test_one_exchange.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture

from protosphere.strategies import fedpft, read_settings
from protosphere.strategies.fedpft import FedPFT
from tests.payloads import lone
from tests.strategies.in_space import D, K, N, exchanged, halves, partitions, samples, unit, upload_of
from tests.strategies.needs import ASKED

STILL = torch.nn.Linear(D, K)


def test_of_one_component_the_mixtures_are_scikit_learn_s():
    features, labels = samples()
    _, objective = halves("fedpft")
    mixtures = lone(upload_of(objective, features, labels))
    assert mixtures.labels.tolist() == list(range(K))
    assert mixtures.counts.tolist() == torch.bincount(labels).tolist()
    for label in range(K):
        own = unit(features)[labels == label].numpy()
        model = GaussianMixture(1, covariance_type="spherical", reg_covar=0).fit(own)
        np.testing.assert_allclose(mixtures.means[label], model.means_[0], atol=1e-6)
        # but for the floor below a variance, a millionth of the class's
        np.testing.assert_allclose(mixtures.variances[label], np.broadcast_to(model.covariances_[0], D), rtol=1e-4)


def test_as_many_are_drawn_as_the_client_has_samples_with_the_mixture_s_moments():
    features, labels = samples(n=40_000)
    server, objective = halves("fedpft", **{"fedpft.components": 2, "fraction-train": 0.5})
    mixtures = lone(upload_of(objective, features, labels))
    drawn, classes = server._draw(3, mixtures, 1.0)
    assert torch.equal(torch.bincount(classes), torch.bincount(labels))
    for label in range(K):
        own, real = drawn[classes == label].double(), unit(features)[labels == label]
        # a mixture fitted by EM has the mean and the total variance of its samples; ten thousand draws, five deviations
        error = real.std(dim=0) / len(own) ** 0.5
        assert bool(((own.mean(dim=0) - real.mean(dim=0)).abs() < 5 * error).all())
        np.testing.assert_allclose(own.var(dim=0).sum(), real.var(dim=0).sum(), rtol=0.05)
    again, _ = server._draw(3, mixtures, 1.0)
    assert torch.equal(drawn, again)
    # in whichever round it is sent, a mixture is the same
    assert torch.equal(lone(upload_of(objective, features, labels, 5)).means, mixtures.means)
    assert not torch.equal(drawn, server._draw(4, mixtures, 1.0)[0])


def test_the_head_is_the_logistic_regression_on_the_draws():
    together, of_all = samples(n=N + 2000)
    features, labels, new, of_new = together[:N], of_all[:N], together[N:], of_all[N:]
    lists = partitions(labels)["unevenly"]
    received, objective, _ = exchanged("fedpft", lists, features, labels)
    server, _ = halves("fedpft", [len(indices) for indices in lists])
    draws = [
        server._draw(client, lone(upload_of(objective, features[indices], labels[indices])), 1.0)
        for client, indices in enumerate(lists)
        if len(indices)
    ]
    drawn, classes = (torch.cat(parts) for parts in zip(*draws, strict=True))
    theirs = LogisticRegression(C=100.0, max_iter=5000).fit(drawn.numpy(), classes.numpy())
    scores = objective.encoded_scores(received, drawn.double())
    loss = float(torch.nn.functional.cross_entropy(scores, classes))
    best = -float(np.log(theirs.predict_proba(drawn.numpy())[np.arange(len(drawn)), classes.numpy()]).mean())
    assert best - 0.01 < loss < best + 0.05
    right = float((objective.encoded_scores(received, unit(new)).argmax(dim=1) == of_new).double().mean())
    assert right > theirs.score(unit(new).numpy(), of_new.numpy()) - 0.03


@pytest.mark.parametrize("components", [1, 5])
def test_it_says_what_components_tell_of_single_samples_and_they_do(components):
    settings = {"fedpft.components": components}
    said = " ".join(read_settings(ASKED["fedpft"] | settings).exchange.list_disclosures(64))
    assert f"single samples: of each in a class of {components} or fewer" in said
    features = samples(n=components)[0]
    _, objective = halves("fedpft", **settings)
    mixtures = lone(upload_of(objective, features, torch.zeros(components, dtype=torch.int64)))
    nearest = torch.cdist(unit(features), mixtures.means.double()).amin(dim=1)
    assert float(nearest.max()) < 1e-6


def test_who_claims_very_many_samples_makes_no_more_draws_than_memory_holds(monkeypatch):
    features, labels = samples()
    server, objective = halves("fedpft")
    honest = lone(upload_of(objective, features, labels))
    liar = replace(honest, counts=torch.full_like(honest.counts, 2**40))
    monkeypatch.setattr(fedpft, "MOST_DRAWS", 5_000)
    sizes = []
    monkeypatch.setattr(FedPFT, "_train_head", lambda self, drawn, classes: sizes.append(len(drawn)) or (STILL, 0.0))
    server.aggregate({0: {"mixtures": honest}, 1: {"mixtures": liar}}, {}, 1)
    # each class of the honest client is still drawn once
    assert 5_000 <= sizes[0] <= 5_000 + 2 * K
