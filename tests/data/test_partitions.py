"""Partitions and splits: covers, counts, and the apportionment against naive loops."""

import math

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.partition.partitioners import PARTITIONS, class_counts, deal_test_rows, partition_rows, split_rows
from tests.data.draws import alike, disjoint

LABELS = np.random.default_rng(7).integers(0, 10, 3000)


USUAL = {"alpha": 0.3, "classes_per_client": 3, "min_samples": 10, "seed": 0}


def deal(scheme, labels=LABELS, clients=8, **settings):
    return partition_rows(labels, clients, scheme, **USUAL | settings)


@pytest.mark.parametrize("scheme", PARTITIONS)
def test_every_row_belongs_to_exactly_one_client_and_the_seed_alone_decides(scheme):
    first, again, other = deal(scheme), deal(scheme), deal(scheme, seed=1)
    for parts in (first, other):
        assert len(parts) == 8
        assert disjoint(parts).tolist() == list(range(LABELS.size))
        assert all((np.diff(part) > 0).all() for part in parts)
        assert min(map(len, parts)) >= 10
    assert alike(first, again)
    assert not alike(first, other)
    # labels need not be consecutive
    spaced = deal(scheme, np.array([3, 900, 3, 900, 7, 7, 7, 3]), 2, alpha=100.0, min_samples=1)
    assert disjoint(spaced).tolist() == list(range(8))


@pytest.mark.parametrize("scheme", PARTITIONS)
def test_clients_get_a_mixture_of_early_and_late_rows(scheme):
    # pooled data sets hold the training rows first: no client may hold only one end of the table
    for part in deal(scheme, clients=4, classes_per_client=4, alpha=1.0):
        assert 0.4 * LABELS.size < part.mean() < 0.6 * LABELS.size


def test_iid_sizes_differ_by_one_and_classes_are_even():
    parts = deal("iid", labels=LABELS[:2999])
    assert {len(part) for part in parts} == {374, 375}
    counts = class_counts(LABELS, parts, 10)
    # 37.5 rows of a class per client: six standard deviations of a hypergeometric draw
    assert np.abs(counts - np.bincount(LABELS[:2999]) / 8).max() < 6 * math.sqrt(37.5)


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    alpha, clients = 0.5, 8
    shares = [
        class_counts(LABELS, deal("dirichlet", alpha=alpha, min_samples=0, seed=seed), 10) / np.bincount(LABELS)
        for seed in range(60)
    ]
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.var(shares) == pytest.approx(expected, rel=0.1)


def test_min_samples_needs_more_draws_than_the_library_takes():
    # about one draw in fifty passes: the library alone, at 11 draws, usually gives up
    for seed in range(3):
        parts = deal("dirichlet", clients=10, alpha=0.1, min_samples=150, seed=seed)
        assert min(map(len, parts)) >= 150


@pytest.mark.parametrize("clients", [10, 13, 30])
def test_pathological_gives_each_client_so_many_classes(clients):
    counts = class_counts(LABELS, deal("pathological", clients=clients, min_samples=1), 10)
    assert ((counts > 0).sum(axis=1) == 3).all()
    for column in counts.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


@pytest.mark.parametrize(("clients", "per_client", "classes"), [(5, 2, 10), (4, 3, 10), (8, 5, 40)])
def test_pathological_covers_more_classes_than_clients(clients, per_client, classes):
    labels = np.arange(1000) % classes
    parts = deal("pathological", labels, clients, classes_per_client=per_client, min_samples=1)
    counts = class_counts(labels, parts, classes)
    assert counts.sum() == 1000
    assert ((counts > 0).sum(axis=1) <= per_client).all()
    assert (counts.sum(axis=0) > 0).all()


@pytest.mark.parametrize(
    ("scheme", "change", "words"),
    [
        ("iid", {"clients": 3001, "min_samples": 0}, "3001 clients need at least 3001 samples, but the data set has"),
        ("iid", {"clients": 301}, "301 clients with min-samples = 10 each need at least 3010 samples"),
        ("pathological", {"classes_per_client": 11}, "classes-per-client is 11, but it must lie between 1 and 10"),
        ("pathological", {"classes_per_client": 2, "clients": 4}, "at most 8 of 10 classes.*classes-per-client to 3"),
        (
            "dirichlet",
            {"alpha": 0.01, "clients": 20, "min_samples": 140},
            "none of 1001 draws .* alpha = 0.01 .* 20 cl",
        ),
    ],
)
def test_what_cannot_be_dealt_is_named(scheme, change, words):
    with pytest.raises(DataError, match=words):
        deal(scheme, **change)


def naive_split_counts(counts, test_share, validation_share):
    """Seat by seat: whole quotas first, then one each to the largest remainder that leaves a training row."""
    total = sum(counts)
    taken = [0] * len(counts)
    result = []
    for share in (test_share, validation_share):
        given = [min(math.floor(n * share + 1e-9), n - 1 - t) for n, t in zip(counts, taken, strict=True)]
        waiting = sorted(range(len(counts)), key=lambda k: (-round(counts[k] * share - given[k], 9), -counts[k], k))
        for k in waiting:
            if sum(given) < math.floor(total * share + 0.5) and given[k] + taken[k] < counts[k] - 1:
                given[k] += 1
        taken = [t + g for t, g in zip(taken, given, strict=True)]
        result.append(given)
    return result


@pytest.mark.parametrize("seed", range(12))
def test_split_is_the_largest_remainder_of_a_naive_loop(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 30, rng.integers(1, 12))
    labels = rng.permutation(np.repeat(np.arange(counts.size), counts))
    shares = rng.choice([0.0, 0.1, 0.25, 0.4], 2)
    train, test, validation = split_rows(labels, shares[0], shares[1], seed)
    assert sorted(np.concatenate([train, test, validation]).tolist()) == list(range(labels.size))
    held = class_counts(labels, [train, test, validation], counts.size)
    assert (held[0] >= 1).all()
    naive = naive_split_counts(counts.tolist(), *shares)
    assert held[1].tolist() == naive[0]
    assert held[2].tolist() == naive[1]


@pytest.mark.parametrize(
    ("labels", "shares", "sizes"),
    [
        ([4], (0.25, 0.1), [1, 0, 0]),
        (range(20), (0.4, 0.4), [20, 0, 0]),
        # one free row a class: test takes its eight, validation what is left
        (np.repeat(np.arange(10), 2), (0.4, 0.4), [10, 8, 2]),
        ([], (0.25, 0.1), [0, 0, 0]),
        ([0] * 9, (0.0, 0.0), [9, 0, 0]),
        (LABELS, (0.25, 0.1), [1950, 750, 300]),
    ],
)
def test_split_of_little_and_of_much_and_the_seed_alone_decides(labels, shares, sizes):
    labels = np.array(labels, dtype=np.int64)
    first, again, other = (split_rows(labels, *shares, seed) for seed in (5, 5, 6))
    assert [len(part) for part in first] == sizes
    assert alike(first, again)
    assert labels.size < 1000 or not alike(first, other)


@pytest.mark.parametrize("seed", range(5))
def test_official_test_rows_are_dealt_in_proportion_and_conserved(seed):
    rng = np.random.default_rng(seed)
    train_counts = rng.integers(0, 40, (7, 5)) * (rng.random((7, 5)) < 0.6)
    train_counts[0, :] += 1
    test_labels = rng.integers(0, 5, 333)
    dealt = deal_test_rows(test_labels, train_counts, seed)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(333))
    given = class_counts(test_labels, dealt, 5)
    quota = train_counts / train_counts.sum(axis=0) * np.bincount(test_labels, minlength=5)
    assert (np.abs(given - quota) < 1).all()
    assert (given[train_counts == 0] == 0).all()


def test_a_class_that_nobody_holds_goes_to_nobody_and_class_counts_are_a_loop():
    dealt = deal_test_rows(np.array([0, 1, 1, 0]), np.array([[3, 0], [1, 0]]), 0)
    assert (disjoint(dealt).tolist(), len(dealt)) == ([0, 3], 2)
    parts, labels = [np.array([0, 2, 3]), np.empty(0, dtype=np.int64), np.array([1])], np.array([2, 0, 2, 1])
    naive = [[sum(labels[row] == k for row in part) for k in range(4)] for part in parts]
    assert class_counts(labels, parts, 4).tolist() == naive
