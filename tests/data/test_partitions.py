"""Partitions and splits: covers, counts, and the apportionment against naive loops."""

import math
import warnings

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

from protosphere.core.errors import DataError
from protosphere.data.partition.partitioners import PARTITIONS, class_counts, deal_test_rows, partition_rows, split_rows
from tests.data.draws import alike, disjoint

LABELS = np.random.default_rng(7).integers(0, 10, 3000)


USUAL = {"alpha": 0.3, "self_balancing": False, "classes_per_client": 3, "min_samples": 10, "seed": 0}


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


def dealt_by_the_library(scheme, labels, clients, *, alpha, self_balancing, min_samples, seed, **_):
    """The first draw of flwr-datasets' partitioner over the same shuffle; None where it gives up."""
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(labels.size)
    draw_seed = int(rng.integers(2**31))
    usual = {"shuffle": False, "seed": draw_seed}
    partitioner = {
        "iid": lambda: IidPartitioner(clients),
        "dirichlet": lambda: DirichletPartitioner(
            clients, "key", alpha, min_partition_size=min_samples, self_balancing=self_balancing, **usual
        ),
    }[scheme]()
    partitioner.dataset = datasets.Dataset.from_dict({"row": order, "key": labels[order]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [np.sort(partitioner.load_partition(client)["row"]) for client in range(clients)]
        except ValueError:
            return None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("scheme", "clients", "settings"),
    [
        ("iid", 7, {}),
        ("dirichlet", 8, {}),
        # most first draws leave a client below this: what is dealt is a later one
        ("dirichlet", 8, {"alpha": 0.3, "min_samples": 60}),
        ("dirichlet", 20, {"alpha": 0.1, "min_samples": 0}),
        ("dirichlet", 20, {"alpha": 0.1, "min_samples": 0, "self_balancing": True}),
    ],
)
def test_rows_are_dealt_as_by_the_partitioners_of_flwr_datasets(scheme, clients, settings, seed):
    settings = USUAL | settings | {"seed": seed}
    by_library = dealt_by_the_library(scheme, LABELS, clients, **settings)
    assert by_library is not None
    assert alike(deal(scheme, clients=clients, **settings), by_library)


def test_min_samples_needs_more_draws_than_one_generator_gives():
    # about one draw in fifty passes: eleven draws are usually too few
    for seed in range(3):
        parts = deal("dirichlet", clients=10, alpha=0.1, min_samples=150, seed=seed)
        assert min(map(len, parts)) >= 150


def test_balanced_clients_hold_as_many_classes_as_with_the_generator_of_protonorm_and_tinyproto():
    """CIFAR-100, both splits together, at 20 clients: theirs deals 895 pairs of a client and a class (33 from draw to
    draw), a plain Dirichlet draw 988. So many means cross in a round."""
    labels, pairs = np.repeat(np.arange(100), 600), {}
    for self_balancing in (False, True):
        settings = {"alpha": 0.1, "self_balancing": self_balancing, "min_samples": 25}
        draws = [deal("dirichlet", labels, 20, seed=seed, **settings) for seed in range(6)]
        pairs[self_balancing] = np.mean([(class_counts(labels, parts, 100) > 0).sum() for parts in draws])
    assert pairs[True] == pytest.approx(895, abs=33)
    assert pairs[False] == pytest.approx(988, abs=33)


@pytest.mark.parametrize(("classes", "per_client", "blocks", "variation"), [(10, 2, 5, 0.79), (100, 10, 10, 0.45)])
def test_pathological_deals_blocks_of_classes_in_uneven_parts(classes, per_client, blocks, variation):
    """CIFAR-10 and CIFAR-100 at 20 clients: so many sets of classes, each of as many clients, whose sizes vary as with
    the generator of HtFLlib."""
    labels, variations = np.repeat(np.arange(classes), 60_000 // classes), []
    for seed in range(30):
        parts = deal("pathological", labels, 20, classes_per_client=per_client, min_samples=25, seed=seed)
        held = class_counts(labels, parts, classes) > 0
        assert (held.sum(axis=1) == per_client).all()
        _, clients_by_set = np.unique(held, axis=0, return_counts=True)
        assert clients_by_set.tolist() == [20 // blocks] * blocks
        sizes = np.array([len(part) for part in parts])
        variations.append(sizes.std() / sizes.mean())
    assert np.mean(variations) == pytest.approx(variation, abs=0.05)


def test_parts_of_a_class_are_uniform_between_a_tenth_of_an_even_one_and_it_and_the_last_has_the_rest():
    labels, first, last = np.zeros(4000, dtype=int), [], []
    for seed in range(200):
        sizes = [len(part) for part in deal("pathological", labels, 4, classes_per_client=1, min_samples=1, seed=seed)]
        first += sizes[:3]
        last.append(sizes[3])
    assert min(first) >= 100
    assert max(first) <= 1000
    assert np.mean(first) == pytest.approx(550, rel=0.05)
    assert np.std(first) == pytest.approx(900 / math.sqrt(12), rel=0.05)
    assert min(last) >= 1000


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
    """Seat by seat: whole quotas first, then one each to the largest remainder that leaves a training row, in turn
    until all that are due are given or nobody has room."""
    total = sum(counts)
    taken = [0] * len(counts)
    result = []
    for share in (test_share, validation_share):
        given = [min(math.floor(n * share + 1e-9), n - 1 - t) for n, t in zip(counts, taken, strict=True)]
        waiting = sorted(range(len(counts)), key=lambda k: (-round(counts[k] * share - given[k], 9), -counts[k], k))
        due = min(math.floor(total * share + 0.5), sum(n - 1 - t for n, t in zip(counts, taken, strict=True)))
        while sum(given) < due:
            for k in waiting:
                if sum(given) < due and given[k] + taken[k] < counts[k] - 1:
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
        # what small classes have no room for, a large one gives: 52 and 83 are due
        ([0] * 200 + list(range(1, 9)), (0.25, 0.0), [156, 52, 0]),
        ([0] * 60 + list(np.repeat(np.arange(1, 30), 2)), (0.7, 0.0), [35, 83, 0]),
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
