"""FedNCM: its classifier is the nearest class mean of all samples together, however they lie among clients; what it
shares with other methods of one exchange: test_one_exchange.py."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.strategies.in_space import K, N, exchanged, halves, partitions, samples, unit, upload_of


@pytest.mark.parametrize("kind", partitions(samples()[1]))
def test_it_is_the_nearest_mean_of_all_samples_however_they_lie_among_clients(kind):
    features, labels = samples()
    received, objective, _ = exchanged("fedncm", partitions(labels)[kind], features, labels)
    new = unit(samples(seed=1)[0])

    means = torch.stack([unit(features)[labels == label].mean(dim=0) for label in range(K)])
    cosines = new @ normalize(means, dim=1).T

    # means and weights cross as float32
    np.testing.assert_allclose(objective.encoded_scores(received, new), cosines, atol=1e-6)


def test_a_report_shows_the_class_means_of_all_samples():
    features, labels = samples()
    server, objective = halves("fedncm", (N // 2,) * 2)
    uploads = {p: upload_of(objective, features[p::2], labels[p::2]) for p in (0, 1)}

    found = server.global_prototypes(server.aggregate(uploads, {}, 1).state)

    assert found.labels.tolist() == list(range(K))
    for label in range(K):
        np.testing.assert_allclose(found.vectors[label], unit(features)[labels == label].mean(dim=0), atol=1e-6)
    assert server.global_prototypes({}) is None
