"""The ensemble's score: the accuracy of the argmax of the mean of all clients' probabilities."""

import torch

from data.shared_set import SharedLabels
from strategies.rounds.ensemble import score


def test_the_score_does_not_depend_on_who_came_first():
    """Two classes that tie but for the order of summation: another order would answer another class."""
    thirds = [torch.tensor([[a, b]], dtype=torch.float64) for a, b in ((0.1, 0.3), (0.2, 0.2), (0.3, 0.1))]
    forward = (0.1 + 0.2) + 0.3, (0.3 + 0.2) + 0.1
    assert forward[0] != forward[1]
    shared = SharedLabels(torch.tensor([0]), 2, 0)
    answers = dict(enumerate(thirds))
    found = {
        score({p: answers[p] for p in order}, shared)["accuracy"]
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1))
    }
    assert len(found) == 1


def test_answers_are_added_up_in_double():
    """Class 1 is ahead by 2^-11 of one client: added to 64 in float16, whose step there is 2^-4, it would be lost."""
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float16)
    ahead = torch.tensor([[0.5, 0.5 + 2**-11]], dtype=torch.float16)
    assert ahead[0, 1] > ahead[0, 0]
    shared = SharedLabels(torch.tensor([1]), 2, 0)
    assert score({0: ahead} | dict.fromkeys(range(1, 130), half), shared)["accuracy"] == 1.0
    assert score(dict.fromkeys(range(129), half) | {129: ahead}, shared)["accuracy"] == 1.0
