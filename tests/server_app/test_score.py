"""The ensemble's score: no order of clients and no narrow type changes whose class wins."""

import itertools

import torch

from protosphere.data.shared_test_set import SharedLabels
from protosphere.server_app.ensemble import score


def test_the_score_does_not_depend_on_who_came_first():
    """Two classes that tie but for the order of summation: another order would answer another class."""
    thirds = [torch.tensor([[a, b]], dtype=torch.float64) for a, b in ((0.1, 0.3), (0.2, 0.2), (0.3, 0.1))]
    assert (0.1 + 0.2) + 0.3 != (0.3 + 0.2) + 0.1
    shared = SharedLabels(torch.tensor([0]), 2, 0)
    orders = itertools.permutations(enumerate(thirds))
    assert len({score(dict(order), shared)["accuracy"] for order in orders}) == 1


def test_answers_are_added_up_in_double():
    """Class 1 is ahead by 2^-11 of one client: added to 64 in float16, whose step there is 2^-4, it would be lost."""
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float16)
    ahead = torch.tensor([[0.5, 0.5 + 2**-11]], dtype=torch.float16)
    shared = SharedLabels(torch.tensor([1]), 2, 0)
    assert score({0: ahead} | dict.fromkeys(range(1, 130), half), shared)["accuracy"] == 1.0
    assert score(dict.fromkeys(range(129), half) | {129: ahead}, shared)["accuracy"] == 1.0
