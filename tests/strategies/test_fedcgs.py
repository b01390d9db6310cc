"""FedCGS: its discriminant is scikit-learn's on all samples together, however they lie among clients; what it shares
with other methods of one exchange: test_one_exchange.py."""

import numpy as np
import pytest
import torch
from sklearn.covariance import empirical_covariance, shrunk_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protosphere.prototypes.release import B, contributions
from tests.strategies.in_space import K, N, exchanged, partitions, samples


def as_sent(features):
    """The directions of samples as they are added up."""
    return contributions(features)[:, :-1].double() / B


def posterior_of_gaussians(new, shares, means, covariance):
    """By a loop over classes, (n, K)."""
    inverse, scores = np.linalg.inv(covariance), []
    for share, mean in zip(shares, means, strict=True):
        offsets = new - mean
        scores.append(np.log(share) - np.einsum("nd,de,ne->n", offsets, inverse, offsets) / 2)
    return torch.softmax(torch.tensor(np.array(scores).T), dim=1)


@pytest.mark.parametrize("kind", ["in turn", "by class", "unevenly"])
@pytest.mark.parametrize("covariance", ["within", "total"])
def test_however_samples_are_dealt_clients_judge_as_if_all_lay_together(covariance, kind):
    features, labels = samples()
    settings = {"fedcgs.shrinkage": 0.1} | ({"fedcgs.covariance": "total"} if covariance == "total" else {})
    received, objective, _ = exchanged("fedcgs", partitions(labels)[kind], features, labels, **settings)
    known, new = as_sent(features).numpy(), as_sent(samples(seed=1)[0]).numpy()

    found = torch.softmax(objective.encoded_scores(received, torch.tensor(new)), dim=1)

    if covariance == "within":
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(known, labels)
        expected = theirs.predict_proba(new)
    else:
        own = [known[labels.numpy() == label] for label in range(K)]
        shares = [len(rows) / N for rows in own]
        means = [rows.mean(axis=0) for rows in own]
        expected = posterior_of_gaussians(new, shares, means, shrunk_covariance(empirical_covariance(known), 0.1))
    # sums cross as float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
