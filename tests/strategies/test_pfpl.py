"""PFPL: who gets which prototypes, round after round."""

import pytest
import torch

from protosphere.prototypes.aggregation import aggregate
from protosphere.prototypes.personalisation import personalise
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import EVERYONE
from tests.payloads import lone, payloads
from tests.strategies.sets import same

K, D = 6, 4
PFPL = {"strategy": "pfpl"}


def same_downloads(one, other):
    return one.keys() == other.keys() and all(same(lone(one[key]), lone(other[key])) for key in one)


def upload(labels, seed):
    generator = torch.Generator().manual_seed(seed)
    return PrototypeSet(torch.tensor(labels), torch.randn(len(labels), D, generator=generator))


@pytest.mark.parametrize("weighting", ["similarity", "distance"])
def test_every_client_gets_its_own_mixture_and_strangers_the_mean(halves, weighting):
    strategy = halves(PFPL | {"pfpl.alpha": 0.3, "pfpl.weighting": weighting}, K, D).server
    sets = {2: upload([0, 1], 1), 5: upload([1, 4], 2), 7: upload([1], 3)}
    outcome = strategy.aggregate(payloads(sets), {}, 1)
    assert set(outcome.downloads) == {EVERYONE, 2, 5, 7}
    expected = personalise(sets, 0.3, weighting)
    means = aggregate(list(sets.values()), "mean")
    assert same_downloads(outcome.downloads, payloads(expected | {EVERYONE: means}))


def test_an_upload_without_classes_replaces_nothing_and_another_all_of_its_client_s(halves):
    strategy = halves(PFPL, K, D).server
    first = {p: upload([0, 1], p) for p in (0, 1)}
    outcome = strategy.aggregate(payloads(first), {}, 1)
    later = strategy.aggregate(payloads({1: upload([1, 2], 11)}), outcome.state, 2)
    assert lone(later.downloads[1]).labels.tolist() == [1, 2]
    assert sum(tensor.numel() for tensor in later.state.values()) == 2 * 2 * (D + 2), "no more than one set a client"
    silent = strategy.aggregate(payloads({0: PrototypeSet.empty(D), 4: PrototypeSet.empty(D)}), outcome.state, 2)
    assert set(silent.downloads) == {EVERYONE, 0, 1}
    assert same_downloads(silent.downloads, outcome.downloads)
    assert strategy.aggregate(payloads({4: PrototypeSet.empty(D)}), {}, 1).downloads == {}


def test_alpha_of_one_sends_each_client_its_own_prototypes_back(halves):
    strategy = halves(PFPL | {"pfpl.alpha": 1.0}, K, D).server
    sets = {p: upload([0, 1, 2], p) for p in range(5)}
    outcome = strategy.aggregate(payloads(sets), {}, 1)
    assert all(same(lone(outcome.downloads[p]), sets[p]) for p in sets)
    # and a stranger nothing: no client learns from others
    assert set(outcome.downloads) == set(sets)
    later = strategy.aggregate(payloads({7: upload([3], 7)}), outcome.state, 2)
    assert set(later.downloads) == {*sets, 7}
    assert all(same(lone(later.downloads[p]), sets[p]) for p in sets)
