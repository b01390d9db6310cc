"""FedNCM: its classifier is the nearest class mean of all samples together, however they lie among clients; what it
shares with other methods of one exchange: test_one_exchange.py."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.strategies.in_space import K, exchanged, partitions, samples, unit


@pytest.mark.parametrize("kind", partitions(samples()[1]))
def test_it_is_the_nearest_mean_of_all_samples_however_they_lie_among_clients(kind):
    features, labels = samples()
    received, objective, _ = exchanged("fedncm", partitions(labels)[kind], features, labels)
    new = unit(samples(seed=1)[0])

    means = torch.stack([unit(features)[labels == label].mean(dim=0) for label in range(K)])
    cosines = new @ normalize(means, dim=1).T

    # means and weights cross as float32
    np.testing.assert_allclose(objective.encoded_scores(received, new), cosines, atol=1e-6)
