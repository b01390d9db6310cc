"""`frame`, ProtoNorm's control: targets from the seed, in every round, and no byte of them crosses."""

import numpy as np
import pytest
import torch

from protosphere.strategies.contract import ClientState
from protosphere.strategies.frame import seeded_frame


@pytest.mark.parametrize(("K", "d"), [(2, 2), (10, 9), (10, 64)])
def test_the_frame_is_a_regular_simplex_where_one_fits(K, d):
    vectors = seeded_frame(K, d, 5).vectors.double().numpy()
    expected = np.where(np.eye(K, dtype=bool), 1.0, -1 / (K - 1))
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-6)


def test_elsewhere_it_is_spread_as_far_as_it_can_be():
    """Six points on a circle: the hexagon."""
    vectors = seeded_frame(6, 2, 0).vectors.double().numpy()
    angles = np.sort(np.degrees(np.arctan2(vectors[:, 1], vectors[:, 0])))
    np.testing.assert_allclose(np.diff(angles), 60, atol=0.1)


def test_it_is_the_seed_s_and_of_no_round(halves):
    assert torch.equal(seeded_frame(4, 7, 1).vectors, seeded_frame.__wrapped__(4, 7, 1).vectors)
    assert not torch.equal(seeded_frame(4, 7, 1).vectors, seeded_frame(4, 7, 2).vectors)
    objective = halves({"strategy": "frame", "frame.gamma": 3.0, "seed": 1}, 4, 7).objective
    targets = objective.targets(ClientState(torch.nn.Identity()), None)
    assert torch.equal(targets.vectors, 3.0 * seeded_frame(4, 7, 1).vectors)
