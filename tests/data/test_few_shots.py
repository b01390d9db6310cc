"""`way-shot` and `mixed`: their draws against the uniform distributions, whose rows are whose, what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.partition.assignment import assignment
from protosphere.data.partition.few_shots import few_shots
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.partition.units import Pool
from protosphere.data.spec import DataSpec
from tests.data.draws import alike, assert_distributed, disjoint, made

NAMES, PLACES = tuple("abcdef"), ("photo", "sketch", "art")
# of the third domain two classes have no row
TABLE = np.array([[900, 800, 700, 900, 800, 700], [600, 700, 900, 600, 700, 900], [800, 0, 700, 600, 0, 900]])
CELLS = np.random.default_rng(5).permutation(np.repeat(np.arange(18), TABLE.ravel()))
DOMAINS, LABELS = np.divmod(CELLS, 6)
USUAL = {"ways": 4, "ways_spread": 2, "shots": 6, "shots_spread": 3}


def deal(labels=LABELS, clients=20, seed=0, names=NAMES, domains=None, **settings):
    about = {} if domains is None else {"domains": domains, "domain_names": PLACES}
    spec = DataSpec("made", clients, "mixed" if about else "way-shot", **USUAL | settings)
    pool = Pool.of(made(labels, class_names=names, **about), np.arange(len(labels)))
    return few_shots(pool, spec, np.random.default_rng(seed))


def drawn(seeds=60, **settings):
    """(seeds · clients, K): rows of each class that each client got."""
    return np.concatenate([class_counts(LABELS, deal(seed=seed, **settings), 6) for seed in range(seeds)])


def drawn_by_domain(seeds=60, **settings):
    """(seeds · clients, domains, classes): rows of each that each client got."""
    parts = [deal(domains=DOMAINS, seed=seed, **settings) for seed in range(seeds)]
    return np.concatenate([class_counts(CELLS, each, 18).reshape(-1, 3, 6) for each in parts])


def even(values):
    return dict.fromkeys(values, 1 / len(values))


# --- the draws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "spread", "numbers"),
    # from 1, which is no number of classes; from 4 to 8, of 6 classes
    [(4, 2, range(2, 7)), (5, 0, [5]), (2, 1, range(2, 4)), (6, 2, range(4, 7))],
)
def test_the_number_of_classes_is_uniform_within_its_bounds(ways, spread, numbers):
    assert_distributed((drawn(ways=ways, ways_spread=spread) > 0).sum(axis=1), even(numbers))


@pytest.mark.parametrize(("shots", "spread", "fewest"), [(6, 3, 3), (4, 0, 4), (1, 2, 1)])
def test_the_number_of_rows_is_uniform_and_the_same_of_each_class_of_a_client(shots, spread, fewest):
    counts = drawn(ways=2, ways_spread=0, shots=shots, shots_spread=spread)
    pairs = counts[counts > 0].reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert_distributed(pairs[:, 0], even(range(fewest, shots + spread + 1)))


def test_every_set_of_classes_and_every_row_of_a_class_are_as_likely():
    held = drawn(ways=3, ways_spread=0) > 0
    sets = [sum(1 << k for k in members) for members in itertools.combinations(range(6), 3)]
    assert_distributed(held @ (1 << np.arange(6)), even(sets))
    few = {"ways": 2, "ways_spread": 0, "shots": 2, "shots_spread": 0}
    parts = [deal(np.repeat([0, 1], 8), 3, seed, ("a", "b"), **few) for seed in range(300)]
    for client in (0, 2):
        # two of eight in a draw: less spread than independent draws, so the test errs on the side of passing
        assert_distributed(np.concatenate([part[client] for part in parts]), even(range(16)))


@pytest.mark.parametrize("clients", [3, 4])
def test_each_client_has_one_domain_the_domains_are_dealt_evenly_and_shuffled(clients):
    first, longest = [], []
    for has_domain in drawn_by_domain(clients=clients).reshape(60, clients, 3, 6).any(axis=3):
        assert (has_domain.sum(axis=1) == 1).all()
        sizes = has_domain.sum(axis=0)
        assert set(sizes.tolist()) <= {1, -(-clients // 3)}
        first.append(has_domain[0].argmax())
        longest.extend(np.flatnonzero(sizes == sizes.max()) if clients == 4 else [])
    assert_distributed(first, even(range(3)))
    # the odd client is of any domain
    if longest:
        assert_distributed(longest, even(range(3)))


def test_numbers_of_classes_and_of_rows_are_uniform_within_the_domain():
    counts = drawn_by_domain(ways=4, ways_spread=2)
    held = (counts > 0).sum(axis=2)
    assert_distributed(held[:, :2][held[:, :2] > 0], even(range(2, 7)))
    assert_distributed(held[:, 2][held[:, 2] > 0], even(range(2, 5)))
    shots = counts.max(axis=(1, 2))
    assert ((counts == 0) | (counts == shots[:, None, None])).all()


def test_no_shots_share_all_rows_of_a_class_of_a_domain_evenly():
    counts = drawn_by_domain(seeds=1, shots=0, ways=3, ways_spread=1)
    for domain, label in itertools.product(range(3), range(6)):
        shares = counts[:, domain, label][counts[:, domain, label] > 0]
        if shares.size:
            assert shares.sum() == TABLE[domain, label]
            assert shares.max() - shares.min() <= 1


@pytest.mark.parametrize(("domains", "shots"), [(None, 6), (DOMAINS, 0), (DOMAINS, 6)])
def test_no_row_is_two_clients_and_the_seed_alone_decides(domains, shots):
    parts, other = deal(domains=domains, shots=shots), deal(domains=domains, shots=shots, seed=1)
    assert len(parts) == 20
    assert disjoint(parts).size <= LABELS.size
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert not alike(parts, other)
    # names do not matter, nor, without domains, classes that have no row
    assert alike(parts, deal(domains=domains, shots=shots, names=("x",) * 6))
    if domains is None:
        assert alike(parts, deal(3 * LABELS + 2, names=("x",) * 40))


NO_ROW = np.empty(0, dtype=np.int64)
EXACT = {"ways_spread": 0, "shots_spread": 0}
LACKING = np.divmod(np.repeat(np.arange(6), [20, 20, 20, 3, 20, 20]), 2)
BAD = [
    ({"ways": 1}, "ways is 1"),
    ({"ways": 7}, "between 2 and 6"),
    ({"shots": 0}, "shots is 0"),
    ({"labels": np.zeros(9, dtype=np.int64)}, "are of 1"),
    ({"labels": NO_ROW}, "are of 0"),
    ({"labels": NO_ROW, "domains": NO_ROW}, "domain 'photo' are of 0"),
    ({"labels": np.where(DOMAINS == 1, 4, LABELS), "domains": DOMAINS}, "domain 'sketch' are of 1"),
    ({"clients": 2, "domains": DOMAINS}, "2 clients for 3 domains"),
    # by its name though a class before it has no row; the one that lacks most
    (
        EXACT | {"labels": np.repeat(np.arange(5), [0, 9, 5, 0, 11]), "shots": 4, "ways": 3, "clients": 3},
        "class 'c' has 5 .*want 12",
    ),
    (
        EXACT | {"labels": LACKING[1], "domains": LACKING[0], "clients": 12, "ways": 2, "shots": 3},
        "class 'b' of domain 'sketch' has 3 .* 4 clients .* want 12",
    ),
    (
        EXACT | {"labels": LACKING[1], "domains": LACKING[0], "clients": 12, "ways": 2, "shots": 0},
        "class 'b' of domain 'sketch' has 3 .* 4 clients .* want 4",
    ),
]


@pytest.mark.parametrize(("change", "word"), BAD, ids=[word for _, word in BAD])
def test_what_cannot_be_dealt_is_named(change, word):
    with pytest.raises(DataError, match=word):
        deal(**change)


# --- of a data set ----------------------------------------------------------------------------------------------------

WAY_SHOT = DataSpec("made", 9, "way-shot", ways=3, ways_spread=1, shots=20, shots_spread=5, split="official")
MIXED = replace(WAY_SHOT, partition="mixed")
OF_DOMAINS = {"domains": DOMAINS, "domain_names": PLACES}
GROUPS = {"groups": np.arange(LABELS.size)}


def data_of(train_rows=9_000, **about):
    return made(LABELS, train_rows, NAMES, **about)


@pytest.mark.parametrize(("spec", "shots"), [(WAY_SHOT, 20), (MIXED, 20), (MIXED, 0)])
def test_a_client_is_tested_on_all_test_rows_of_what_it_holds(tmp_path, spec, shots):
    data, kinds = (data_of(), LABELS) if spec is WAY_SHOT else (data_of(**OF_DOMAINS), CELLS)
    who = assignment(replace(spec, shots=shots, shared_test_share=0.1), data, tmp_path)
    assert disjoint([*who.train, *who.validation]).max() < 9_000
    free = np.setdiff1d(np.arange(9_000, LABELS.size), who.shared)
    for train, test, validation in zip(who.train, who.test, who.validation, strict=True):
        assert np.array_equal(test, free[np.isin(kinds[free], kinds[train])])
        assert validation.size == pytest.approx(0.1 * (train.size + validation.size), abs=0.5)
        assert set(kinds[validation]) <= set(kinds[train])
    # clients that share a class share its test rows
    tested = np.concatenate(who.test)
    assert np.unique(tested).size < tested.size


def test_pooled_rows_are_each_client_s_own_to_split(tmp_path):
    who = assignment(replace(MIXED, split="pooled"), data_of(**OF_DOMAINS), tmp_path)
    # test rows of the data set are dealt, too
    assert disjoint(who.rows_by_client).max() >= 9_000
    for test, rows in zip(who.test, who.rows_by_client, strict=True):
        assert test.size == pytest.approx(0.25 * rows.size, abs=0.5)
        assert np.unique(DOMAINS[rows]).size == 1


@pytest.mark.parametrize("spec", [WAY_SHOT, MIXED])
def test_the_settings_of_the_partition_alone_decide(tmp_path, spec):
    data = data_of(**OF_DOMAINS)
    usual = assignment(spec, data, tmp_path)
    for change in ({"ways": 4}, {"ways_spread": 0}, {"shots": 21}, {"shots_spread": 4}, {"seed": 1}, {"clients": 10}):
        other = assignment(replace(spec, **change), data, tmp_path)
        assert [rows.tolist() for rows in other.train] != [rows.tolist() for rows in usual.train]
    for change in ({}, {"alpha": 9.0}, {"classes_per_client": 5}, {"min_samples": 10_000}, {"test_share": 0.5}):
        assert alike(usual.rows_by_client, assignment(replace(spec, **change), data, tmp_path).rows_by_client)


@pytest.mark.parametrize(
    ("about", "spec", "word"),
    [
        ({}, MIXED, "'made' is one"),
        (OF_DOMAINS | GROUPS, MIXED, "in groups"),
        (GROUPS, WAY_SHOT, "in groups"),
        (OF_DOMAINS | {"train_rows": LABELS.size}, MIXED, "domain 'photo' has no official"),
        ({"train_rows": LABELS.size}, WAY_SHOT, "has none"),
    ],
)
def test_what_they_need_is_said(tmp_path, about, spec, word):
    with pytest.raises(DataError, match=word):
        assignment(spec, data_of(**about), tmp_path)
