"""Who contradicts the others: naive loops, honest federations that nobody is left out of, liars who are."""

import math

import pytest
import torch
from torch.special import ndtr

from protosphere.prototypes import agreement
from protosphere.prototypes.agreement import SHRINKAGE, disagreement
from protosphere.prototypes.prototype_set import PrototypeSet, class_means

K, D = 6, 12
# as of an encoder's features their centre is not 0; classes lie about 6 of its standard deviations apart
CENTRES = 15 + 4 * torch.randn(K, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def federation(number=8, held=3, rows=20, seed=0):
    """Clients of `held` classes each: their class means, the rows of each, and the pooled scatter."""
    random = torch.Generator().manual_seed(seed)
    means, of, scatter = {}, {}, torch.zeros(D, D, dtype=torch.float64)
    for client in range(number):
        labels = torch.randperm(K, generator=random)[:held].repeat_interleave(rows)
        features = CENTRES[labels] + torch.randn(len(labels), D, dtype=torch.float64, generator=random)
        found = class_means(features, labels, K)
        apart = features - found.vectors[torch.searchsorted(found.labels, labels)]
        scatter += apart.T @ apart / len(labels)
        means[client], of[client] = PrototypeSet(found.labels, found.vectors), torch.full((held,), float(rows))
    return means, of, scatter / number


def turned(each):
    """Each class with the mean of another."""
    return PrototypeSet(each.labels, each.vectors.roll(1, 0))


def reversed_(each):
    return PrototypeSet(each.labels, -each.vectors)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("held", [1, 2, 3, 6])
def test_nobody_honest_is_left_out(held, seed):
    found = disagreement(*federation(held=held, seed=seed))
    assert (list(found.far), list(found.contradicted), dict(found.disputes)) == ([], [], {})


@pytest.mark.parametrize("lie", [turned, reversed_])
@pytest.mark.parametrize("liars", [(5,), (0, 3, 6)])
def test_liars_are_left_out_and_nobody_else(lie, liars):
    means, rows, covariance = federation(number=10)
    told = {client: lie(each) if client in liars else each for client, each in means.items()}
    found = disagreement(told, rows, covariance)
    assert found.left_out == set(liars)
    assert set(found.far) == (set() if lie is turned else set(liars))


def test_of_two_who_contradict_each_other_both_stay_and_each_is_named_to_the_other():
    _, rows, covariance = federation(number=4, held=3)
    # the first two share classes 0 to 2, which nobody else has
    own = PrototypeSet(torch.arange(3), CENTRES[:3])
    others = {client: PrototypeSet(torch.arange(3, 6), CENTRES[3:] + 0.01 * client) for client in (2, 3)}
    found = disagreement({0: own, 1: turned(own), **others}, rows, covariance)
    assert found.left_out == set()
    assert found.disputes == {0: {1}, 1: {0}}


def test_a_class_at_the_place_of_another_client_s_other_class_is_a_contradiction():
    _, rows, covariance = federation(number=4, held=2)
    noise = torch.randn(4, 2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) / 4
    held = [(0, 1), (2, 3), (4, 5), (0, 5)]
    told = {
        client: PrototypeSet(torch.tensor(own), CENTRES[list(own)] + noise[client]) for client, own in enumerate(held)
    }
    assert disagreement(told, rows, covariance).disputes == {}
    told[1] = PrototypeSet(told[1].labels, told[0].vectors)
    # its classes are where two others have class 0
    assert list(disagreement(told, rows, covariance).contradicted) == [1]


def test_contradictions_are_those_of_loops():
    means, rows, covariance = federation(number=5, held=4, rows=3, seed=7)
    noisy = {
        c: PrototypeSet(
            e.labels, e.vectors + 3 * torch.randn(e.vectors.shape, generator=torch.Generator().manual_seed(c))
        )
        for c, e in means.items()
    }
    scatter = covariance.double()
    sphere = (1 - SHRINKAGE) * scatter + SHRINKAGE * scatter.trace() / D * torch.eye(D, dtype=torch.float64)
    factor = torch.linalg.cholesky(sphere)
    white = {c: torch.linalg.solve_triangular(factor, e.vectors.T, upper=False).T for c, e in noisy.items()}
    spread = float((torch.linalg.inv(sphere) @ scatter).trace())

    def judgements(i, k):
        """Of i's classes by k's means."""
        for a, label in enumerate(noisy[i].labels.tolist()):
            known = noisy[k].labels.tolist()
            if label not in known:
                continue
            x, own, n_x = white[i][a], white[k][known.index(label)], float(rows[i][a])
            worst = -math.inf
            for b, centre in enumerate(white[k]):
                if known[b] == label:
                    continue
                n = float(rows[k][b])
                to_own, to_it = float((x - own).square().sum()), float((x - centre).square().sum())
                apart = float((own - centre).square().sum())
                nearer = ((to_own - spread / n) - (to_it - spread / n)) / 2
                worst = max(worst, nearer / math.sqrt(apart * (1 + 1 / n_x) + to_own / n + to_it / n))
            yield float(ndtr(torch.tensor(worst, dtype=torch.float64)))

    points = torch.cat(list(white.values()))
    labels = torch.cat([e.labels for e in noisy.values()])
    owner = torch.arange(5).repeat_interleave(4)
    of = torch.cat(list(rows.values())).double()
    found = agreement._contradictions(points, labels, owner, of, spread / of, 5)
    nearest = sorted(float(torch.pdist(white[c]).min()) for c in white)[2]
    every = torch.cdist(points, points)
    alike = every[(labels.unsqueeze(1) == labels) & (owner.unsqueeze(1) != owner)].median()
    place = min(agreement.NEAREST * nearest, agreement.ALIKE * float(alike))
    for i in range(5):
        for k in range(5):
            if i == k:
                assert found[i, k].isnan()
                continue
            near = torch.cdist(white[i], white[k]) < place
            clash = bool((near & (noisy[i].labels.unsqueeze(1) != noisy[k].labels)).any())
            expected = [*judgements(i, k), *judgements(k, i)]
            mean = 1.0 if clash else sum(expected) / len(expected)
            assert float(found[i, k]) == pytest.approx(mean, rel=1e-6)


def test_turning_and_scaling_the_space_changes_nobody():
    means, rows, covariance = federation(number=10)
    told = {client: turned(each) if client == 4 else each for client, each in means.items()}
    basis, _ = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    moved = {client: PrototypeSet(each.labels, 0.01 * each.vectors @ basis) for client, each in told.items()}
    found = disagreement(moved, rows, 1e-4 * basis.T @ covariance @ basis)
    assert found == disagreement(told, rows, covariance)


def test_many_clients_are_judged_in_blocks(monkeypatch):
    means, rows, covariance = federation(number=30)
    told = {client: turned(each) if client in (4, 11) else each for client, each in means.items()}
    monkeypatch.setattr(agreement, "POINTS", 30)
    assert disagreement(told, rows, covariance).left_out == {4, 11}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_of_fewer_than_three_nobody_is_the_odd_one(number):
    means, rows, covariance = federation(number=3)
    told = {client: reversed_(each) if client else each for client, each in means.items() if client < number}
    assert disagreement(told, rows, covariance).left_out == set()


def test_without_scatter_or_means_nothing_is_said():
    means, rows, covariance = federation(number=4)
    assert disagreement(means, rows, torch.zeros(D, D)).left_out == set()
    empty = {client: PrototypeSet(torch.zeros(0, dtype=torch.int64), torch.zeros(0, D)) for client in means}
    assert disagreement(empty, rows, covariance).left_out == set()
