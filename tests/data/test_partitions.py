"""Partitions and splits: covers, counts, the apportionment against naive loops, tables of counts, and groups."""

import math
import warnings
from collections import Counter
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

from protosphere.core.errors import DataError
from protosphere.data.decode import open_data
from protosphere.data.partition import partitioners
from protosphere.data.partition.assignment import assignment
from protosphere.data.partition.partitioners import class_counts, deal_in_proportion
from protosphere.data.partition.splits import stratified_split
from protosphere.data.partition.table import divide_by_table
from protosphere.data.partition.units import Pool
from protosphere.data.spec import DataSpec
from tests.data.draws import alike, disjoint, made

LABELS = np.random.default_rng(7).integers(0, 10, 3000)
USUAL = {"alpha": 0.3, "classes_per_client": 3}


def deal(scheme, labels=LABELS, clients=8, **settings):
    spec = DataSpec("made", clients, scheme, **USUAL | settings)
    return partitioners.deal(spec, Pool.of(made(labels), np.arange(len(labels))))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "pathological"])
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
    # pooled data sets hold the training rows first: no client may hold only one end of the table
    for part in deal(scheme, clients=4, classes_per_client=4, alpha=1.0):
        assert 0.4 * LABELS.size < part.mean() < 0.6 * LABELS.size


def dealt_by_the_library(scheme, clients, spec):
    """The first draw of flwr-datasets' partitioner over the same shuffle."""
    rng = np.random.default_rng([spec.seed, 0])
    order = rng.permutation(LABELS.size)
    seed = int(rng.integers(2**31))
    partitioner = IidPartitioner(clients)
    if scheme == "dirichlet":
        usual = {"min_partition_size": spec.min_samples, "self_balancing": spec.self_balancing}
        partitioner = DirichletPartitioner(clients, "key", spec.alpha, shuffle=False, seed=seed, **usual)
    partitioner.dataset = datasets.Dataset.from_dict({"row": order, "key": LABELS[order]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.sort(partitioner.load_partition(client)["row"]) for client in range(clients)]


@pytest.mark.parametrize("seed", range(2))
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
    expected = dealt_by_the_library(scheme, clients, DataSpec("made", clients, scheme, **settings))
    assert alike(deal(scheme, clients=clients, **settings), expected)


def test_min_samples_needs_more_draws_than_one_generator_gives():
    # about one draw in fifty passes: eleven draws are usually too few
    parts = deal("dirichlet", clients=10, alpha=0.1, min_samples=150)
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


@pytest.mark.parametrize(("clients", "per_client", "classes"), [(4, 3, 10), (8, 5, 40)])
def test_pathological_covers_more_classes_than_clients(clients, per_client, classes):
    labels = np.arange(1000) % classes
    counts = class_counts(labels, deal("pathological", labels, clients, classes_per_client=per_client), classes)
    assert counts.sum() == 1000
    assert ((counts > 0).sum(axis=1) <= per_client).all()
    assert (counts.sum(axis=0) > 0).all()


@pytest.mark.parametrize(
    ("scheme", "change", "words"),
    [
        ("iid", {"clients": 3001, "min_samples": 0}, "3001 clients need"),
        ("iid", {"clients": 301}, "min-samples = 10 each need at least 3010"),
        ("pathological", {"classes_per_client": 11}, "between 2, .* and 10"),
        ("pathological", {"classes_per_client": 2, "clients": 4}, "between 3, .* leave samples to nobody"),
        ("pathological", {"min_samples": 375}, "classes-per-client = 3"),
    ],
)
def test_what_cannot_be_dealt_is_named(scheme, change, words):
    with pytest.raises(DataError, match=words):
        deal(scheme, **change)


# --- the split of one client's rows -----------------------------------------------------------------------------------


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
    parts = stratified_split(labels, shares[0], shares[1], seed)
    assert disjoint(parts).tolist() == list(range(labels.size))
    held = class_counts(labels, parts, counts.size)
    assert (held[0] >= 1).all()
    assert held[1:].tolist() == naive_split_counts(counts.tolist(), *shares)
    assert alike(parts, stratified_split(labels, shares[0], shares[1], seed))


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
        (LABELS, (0.25, 0.1), [1950, 750, 300]),
    ],
)
def test_split_of_little_and_of_much(labels, shares, sizes):
    assert [len(part) for part in stratified_split(np.array(labels, dtype=np.int64), *shares, 5)] == sizes


@pytest.mark.parametrize("seed", range(3))
def test_official_test_rows_are_dealt_in_proportion_and_conserved(seed):
    rng = np.random.default_rng(seed)
    train_counts = rng.integers(0, 40, (7, 5)) * (rng.random((7, 5)) < 0.6)
    train_counts[0, :] += 1
    # nobody holds the sixth class
    train_counts = np.hstack([train_counts, np.zeros((7, 1), dtype=int)])
    test_labels = rng.integers(0, 6, 333)
    dealt = deal_in_proportion(test_labels, train_counts, seed)
    assert disjoint(dealt).tolist() == np.flatnonzero(test_labels < 5).tolist()
    given = class_counts(test_labels, dealt, 6)[:, :5]
    quota = train_counts[:, :5] / train_counts[:, :5].sum(axis=0) * np.bincount(test_labels)[:5]
    assert (np.abs(given - quota) < 1).all()
    assert (given[train_counts[:, :5] == 0] == 0).all()


# --- a table of counts ------------------------------------------------------------------------------------------------

NAMES = ("cat", "dog", "frog, green")
FEW = np.repeat([0, 1, 2], [10, 20, 5])
COUNTS = np.array([[3, 0, 5], [7, 20, 0]])
IN_ORDER = 'client,cat,dog,"frog, green"\n0,3,0,5\n1,7,20,0\n'
OTHER_ORDER = '\ufeffclient,dog,"frog, green",cat\r\n0,0,5,3\r\n1,20,0,7\r\n\r\n'


def by_table(path, seed=0):
    pool = Pool.of(made(FEW, class_names=NAMES), np.arange(len(FEW)))
    return divide_by_table(pool, DataSpec("made", 2, partition_table=str(path)), np.random.default_rng(seed))


@pytest.mark.parametrize("content", [IN_ORDER, OTHER_ORDER])
def test_each_client_gets_what_the_table_counts_whatever_the_order_of_columns(tmp_path, content):
    path = tmp_path / "table.csv"
    path.write_text(content, "utf-8")
    parts = by_table(path)
    assert class_counts(FEW, parts, 3).tolist() == COUNTS.tolist()
    assert disjoint(parts).size == COUNTS.sum()
    assert not alike(parts, by_table(path, seed=4))


HEAD = 'client,cat,dog,"frog, green"\n'
BAD = [
    ("client,cat,dog\n0,1,1\n1,1,1\n", "columns client, cat, dog"),
    ("", "of no name"),
    (HEAD + "0,1,1,1\n", "has 1 rows"),
    (HEAD + "1,1,1,1\n0,1,1,1\n", "in that order"),
    (HEAD + "0," + "1" * 200_000, "no CSV file"),
    (HEAD + "0,1,1,1\n1,1,-1,1\n", "whole number"),
    (HEAD + "0,1,1,1\n1,1,1\n", "whole number"),
    (HEAD + "0,1,1,1\n1,0,0,0\n", "client 1 no sample"),
    (HEAD + "0,1,1,1\n1,1,20,1\n", "21 samples of class 'dog', but 20"),
    ("client,\xff\n", "UTF-8"),
    (None, "No such file"),
]


@pytest.mark.parametrize(("content", "word"), BAD, ids=[word for _, word in BAD])
def test_a_table_that_does_not_fit_is_refused(content, word, tmp_path):
    if content is not None:
        (tmp_path / "table.csv").write_text(content, "latin-1")
    with pytest.raises(DataError, match=word):
        by_table(tmp_path / "table.csv")


def test_another_table_by_the_same_name_deals_anew(tmp_path):
    names, counts, path = tuple(map(str, range(10))), np.arange(40).reshape(4, 10) + 1, tmp_path / "table.csv"
    spec = DataSpec("digits", 4, "table", partition_table=str(path))
    data = open_data(spec, tmp_path / "cache")
    for asked in (counts, counts[::-1]):
        pd.DataFrame(asked, columns=names).to_csv(path, index_label="client")
        held = assignment(spec, data, tmp_path / "cache").rows_by_client
        assert class_counts(data.labels, held, 10).tolist() == asked.tolist()


# --- groups -----------------------------------------------------------------------------------------------------------


def rows_with_groups(seed, rows=900, groups=250, classes=4):
    rng = np.random.default_rng(seed)
    return rng.integers(classes, size=rows), rng.integers(groups, size=rows) * 7 - 300


@pytest.mark.parametrize("seed", range(3))
def test_units_are_those_of_a_loop(seed):
    labels, groups = rows_with_groups(seed, rows=60, groups=25)
    pool = Pool.of(made(labels, groups=groups), np.arange(60))
    first_seen = list(dict.fromkeys(groups.tolist()))
    assert len(pool) == len(first_seen)
    for unit, group in enumerate(first_seen):
        counts = Counter(labels[groups == group].tolist())
        assert pool.labels[unit] == min(label for label in counts if counts[label] == max(counts.values()))
        assert pool.rows_of(np.array([unit])).tolist() == np.flatnonzero(groups == group).tolist()
    rows = [row for row in range(60) if first_seen.index(groups[row]) in (9, 2, 5)]
    assert pool.rows_of(np.array([9, 2, 5])).tolist() == rows
    # one row less, and its unit is not whole any more
    assert pool.whole_units(np.array(rows)).tolist() == [2, 5, 9]
    assert pool.whole_units(np.array(rows[1:])).tolist() == sorted({2, 5, 9} - {first_seen.index(groups[rows[0]])})


@pytest.mark.parametrize("split", ["pooled", "official"])
@pytest.mark.parametrize(("seed", "scheme"), [(0, "iid"), (1, "dirichlet"), (2, "pathological")])
def test_no_group_is_on_two_sides_and_no_row_is_lost(tmp_path, scheme, seed, split):
    labels, groups = rows_with_groups(seed)
    if split == "official":
        # the later table has patients of its own
        groups = np.where(np.arange(900) < 600, groups, groups + 10_000)
    spec = DataSpec("made", 5, scheme, alpha=1.0, min_samples=8, shared_test_share=0.2, seed=seed, split=split)
    who = assignment(spec, made(labels, groups=groups, train_rows=600), tmp_path)
    sides = [who.shared, *who.test, *who.train, *who.validation]
    side_of = {}
    for number, rows in enumerate(sides):
        for group in groups[rows].tolist():
            assert side_of.setdefault(group, number) == number
        if split == "official" and rows.size:
            assert (rows.min() >= 600) == (number < 6)
    assert disjoint(sides).tolist() == list(range(900))
    # shares and min-samples count groups
    assert min(np.unique(groups[rows]).size for rows in who.rows_by_client) >= 8
    among = groups if split == "pooled" else groups[600:]
    assert np.unique(groups[who.shared]).size == round(0.2 * np.unique(among).size)


def test_a_group_of_both_tables_is_refused_but_by_a_site_that_may_not_refuse(tmp_path):
    """Under `privacy` no row decides on more than itself: the test rows of that group are left out."""
    data = made(np.array([0, 1, 0, 1, 0]), groups=np.array([5, 6, 7, 8, 6]), train_rows=3)
    spec = DataSpec("made", clients=1, min_samples=1, split="official")
    with pytest.raises(DataError, match=r"row 1 of the test table .* row 1 of the train table"):
        assignment(spec, data, tmp_path)
    assert assignment(replace(spec, split="pooled"), data, tmp_path).train
    assert assignment(replace(spec, secret="07" * 32), data, tmp_path, single=True).test[0].tolist() == [3]


def test_groups_count_where_too_few_are_asked_for(tmp_path):
    data = made(np.zeros(100, dtype=np.int64), groups=np.arange(100) // 20)
    with pytest.raises(DataError, match=r"has 5: .*share a group count as one"):
        assignment(DataSpec("made", clients=6, min_samples=1), data, tmp_path)
    one = assignment(DataSpec("made", clients=1, min_samples=1), data, tmp_path)
    # of five patients round(1.25) are tested on, and half of one, so one, validates
    assert [len(each[0]) for each in (one.train, one.test, one.validation)] == [60, 20, 20]
