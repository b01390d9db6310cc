"""PFPL's personalised prototypes against the formula written as loops, and what they must be at the ends of α."""

import math

import pytest
import torch

from protosphere.prototypes.personalisation import EPSILON, WEIGHTINGS, mixing_weights, personalise
from protosphere.prototypes.prototype_set import PrototypeSet


def random_sets(clients=9, classes=5, dim=4, seed=0, dtype=torch.float64):
    """Each client holds some of the classes, perhaps none; ids are neither dense nor ascending."""
    generator = torch.Generator().manual_seed(seed)
    sets = {}
    for client in torch.randperm(100, generator=generator)[:clients].tolist():
        labels = (torch.rand(classes, generator=generator) < 0.5).nonzero().flatten()
        sets[client] = PrototypeSet(labels, 3 * torch.randn(len(labels), dim, generator=generator, dtype=dtype))
    return sets


def row_of(each, label):
    return each.vectors[each.labels.tolist().index(label)]


def by_loops(sets, client, label, alpha, weighting):
    """Eq. 4 as it stands, one pair at a time."""
    own = row_of(sets[client], label)
    others = [row_of(each, label) for m, each in sets.items() if m != client and label in each.labels.tolist()]
    if not others:
        return own
    squares = [sum((a - b) ** 2 for a, b in zip(own.tolist(), p.tolist(), strict=True)) for p in others]
    raw = [1 / (square + EPSILON) if weighting == "similarity" else square for square in squares]
    total = math.fsum(raw)
    mixed = [math.fsum(w / total * p[x].item() for w, p in zip(raw, others, strict=True)) for x in range(len(own))]
    return alpha * own + (1 - alpha) * torch.tensor(mixed, dtype=own.dtype)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_formula_written_as_loops(weighting, alpha, seed):
    sets = random_sets(seed=seed)
    found = personalise(sets, alpha, weighting)
    assert list(found) == list(sets)
    for client, each in sets.items():
        assert torch.equal(found[client].labels, each.labels)
        assert found[client].counts is None
        for label in each.labels.tolist():
            expected = by_loops(sets, client, label, alpha, weighting)
            torch.testing.assert_close(row_of(found[client], label), expected, rtol=1e-10, atol=1e-10)


def test_identical_clients():
    twin = PrototypeSet(torch.tensor([0]), torch.tensor([[0.1, -7.3, 2.2]]))
    far = PrototypeSet(torch.tensor([0]), torch.tensor([[4.0, 4.0, 4.0]]))
    for weighting in WEIGHTINGS:
        alike = personalise({0: twin, 1: twin}, 0.5, weighting)
        torch.testing.assert_close(alike[0].vectors, twin.vectors)
        # an alpha of one gives back what came, to the bit
        assert torch.equal(personalise({0: twin, 1: far}, 1.0, weighting)[0].vectors, twin.vectors)
    # the twin has nearly all of the weight by similarity, and none by distance
    for weighting, expected in (("similarity", twin), ("distance", far)):
        found = personalise({0: twin, 1: twin, 2: far}, 0.0, weighting)[0]
        torch.testing.assert_close(found.vectors, expected.vectors, rtol=0, atol=1e-6)
    # where all are equally far, all weigh alike
    weights = mixing_weights(torch.full((5, 3), 2.5), "distance")
    assert torch.equal(weights, (1 - torch.eye(5, dtype=torch.float64)) / 4)


def test_float32_keeps_what_float64_finds_far_from_the_origin():
    sets = random_sets(dtype=torch.float64)
    shifted = {c: each.with_vectors((each.vectors + 1000).float()) for c, each in sets.items()}
    exact = {c: each.with_vectors(each.vectors.double()) for c, each in shifted.items()}
    for client, each in personalise(shifted, 0.3).items():
        expected = personalise(exact, 0.3)[client].vectors.float()
        torch.testing.assert_close(each.vectors, expected, rtol=1e-7, atol=0)


def test_nobody_and_nothing():
    assert personalise({}, 0.5) == {}
    empty = PrototypeSet.empty(3)
    assert len(personalise({4: empty}, 0.5)[4]) == 0
