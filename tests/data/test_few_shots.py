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
    tables = [
        class_counts(CELLS, deal(domains=DOMAINS, seed=seed, **settings), 18).reshape(-1, 3, 6) for seed in range(seeds)
    ]
    return np.concatenate(tables)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "spread", "probabilities"),
    [
        (4, 2, dict.fromkeys(range(2, 7), 1 / 5)),
        (5, 0, {5: 1.0}),
        # from 1, which is no number of classes; from 4 to 8, of 6 classes
        (2, 1, dict.fromkeys(range(2, 4), 1 / 2)),
        (6, 2, dict.fromkeys(range(4, 7), 1 / 3)),
    ],
)
def test_the_number_of_classes_is_uniform_within_its_bounds(ways, spread, probabilities):
    assert_distributed((drawn(ways=ways, ways_spread=spread) > 0).sum(axis=1), probabilities)


@pytest.mark.parametrize(("shots", "spread", "fewest"), [(6, 3, 3), (4, 0, 4), (1, 2, 1)])
def test_the_number_of_rows_is_uniform_and_the_same_of_each_class_of_a_client(shots, spread, fewest):
    counts = drawn(ways=2, ways_spread=0, shots=shots, shots_spread=spread)
    pairs = counts[counts > 0].reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    values = range(fewest, shots + spread + 1)
    assert_distributed(pairs[:, 0], dict.fromkeys(values, 1 / len(values)))


def test_every_set_of_classes_is_as_likely():
    held = drawn(ways=3, ways_spread=0) > 0
    every = [sum(1 << k for k in chosen) for chosen in itertools.combinations(range(6), 3)]
    assert_distributed(held @ (1 << np.arange(6)), dict.fromkeys(every, 1 / 20))


def test_every_row_of_a_class_is_as_likely_for_the_first_and_the_last_client():
    few = {"ways": 2, "ways_spread": 0, "shots": 2, "shots_spread": 0}
    parts = [deal(np.repeat([0, 1], 8), 3, seed, "ab", **few) for seed in range(300)]
    for client in (0, 2):
        # two of eight a draw: less spread than independent draws, so the test errs on the side of passing
        assert_distributed(np.concatenate([part[client] for part in parts]), dict.fromkeys(range(16), 1 / 16))


@pytest.mark.parametrize("clients", [3, 4])
def test_each_client_has_one_domain_the_domains_are_dealt_evenly_and_shuffled(clients):
    own, longest = [], []
    for of_domain in drawn_by_domain(clients=clients).reshape(60, clients, 3, 6).any(axis=3):
        assert (of_domain.sum(axis=1) == 1).all()
        each = of_domain.sum(axis=0)
        assert set(each.tolist()) <= {1, -(-clients // 3)}
        own.append(of_domain[0].argmax())
        longest.extend(np.flatnonzero(each == each.max()) if clients == 4 else [])
    assert_distributed(own, dict.fromkeys(range(3), 1 / 3))
    # the odd client is of any domain
    if longest:
        assert_distributed(longest, dict.fromkeys(range(3), 1 / 3))


def test_numbers_of_classes_and_of_rows_are_uniform_within_what_the_domain_has():
    counts = drawn_by_domain(ways=4, ways_spread=2)
    held = (counts > 0).sum(axis=2)
    assert_distributed(held[:, :2][held[:, :2] > 0], dict.fromkeys(range(2, 7), 1 / 5))
    assert_distributed(held[:, 2][held[:, 2] > 0], dict.fromkeys(range(2, 5), 1 / 3))
    shots = counts.max(axis=(1, 2))
    assert ((counts == 0) | (counts == shots[:, None, None])).all()


def test_no_shots_share_all_rows_of_a_class_of_a_domain_evenly():
    counts = drawn_by_domain(seeds=1, shots=0, ways=3, ways_spread=1)
    for domain, label in itertools.product(range(3), range(6)):
        shares = counts[:, domain, label][counts[:, domain, label] > 0]
        if shares.size:
            assert shares.sum() == TABLE[domain, label]
            assert shares.max() - shares.min() <= 1


# --- whose rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("domains", "shots"), [(None, 6), (DOMAINS, 0), (DOMAINS, 6)])
def test_no_row_is_two_clients_and_the_seed_alone_decides(domains, shots):
    parts, other = deal(domains=domains, shots=shots), deal(domains=domains, shots=shots, seed=1)
    assert len(parts) == 20
    assert disjoint(parts).size <= LABELS.size
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert not alike(parts, other)
    # what classes are called does not matter, nor, where there are no domains, classes that have no row
    assert alike(parts, deal(domains=domains, shots=shots, names=["x"] * 6))
    if domains is None:
        assert alike(parts, deal(3 * LABELS + 2, names=["x"] * 40))


NO_ROW = np.empty(0, dtype=np.int64)
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
    ({"labels": np.repeat(np.arange(5), [0, 9, 5, 0, 11]), "shots": 4, "ways": 3}, "class 'c' has 5 .*want 12"),
]


@pytest.mark.parametrize(("change", "word"), BAD, ids=[word for _, word in BAD])
def test_what_cannot_be_dealt_is_named(change, word):
    exact = {"ways_spread": 0, "shots_spread": 0, "clients": 3} if "want" in word else {}
    with pytest.raises(DataError, match=word):
        deal(**exact | change)


@pytest.mark.parametrize(("shots", "has", "want"), [(3, 11, 12), (0, 3, 4)])
def test_a_class_of_a_domain_that_has_too_few_rows_is_named(shots, has, want):
    domains, labels = np.divmod(np.repeat(np.arange(6), [20, 20, 20, has, 20, 20]), 2)
    with pytest.raises(DataError, match=f"class 'b' of domain 'sketch' has {has} .* 4 clients .* want {want}"):
        deal(labels, 12, domains=domains, ways=2, ways_spread=0, shots=shots, shots_spread=0)


# --- of a data set ----------------------------------------------------------------------------------------------------

PLAIN = {"train_rows": 9_000, "class_names": NAMES}
WAY_SHOT = DataSpec("made", 9, "way-shot", ways=3, ways_spread=1, shots=20, shots_spread=5, split="official")
MIXED = replace(WAY_SHOT, partition="mixed")


def data_of(**about):
    return made(LABELS, **PLAIN | ({"domain_names": PLACES} if "domains" in about else {}) | about)


@pytest.mark.parametrize(("spec", "shots"), [(WAY_SHOT, 20), (MIXED, 20), (MIXED, 0)])
def test_a_client_is_tested_on_all_test_rows_of_what_it_holds(tmp_path, spec, shots):
    data, kinds = (data_of(), LABELS) if spec is WAY_SHOT else (data_of(domains=DOMAINS), CELLS)
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
    who = assignment(replace(MIXED, split="pooled"), data_of(domains=DOMAINS), tmp_path)
    # test rows of the data set are dealt, too
    assert disjoint(who.held).max() >= 9_000
    for test, own in zip(who.test, who.held, strict=True):
        assert test.size == pytest.approx(0.25 * own.size, abs=0.5)
        assert np.unique(DOMAINS[own]).size == 1


def test_max_samples_leaves_the_first_rows_to_be_drawn_from(tmp_path):
    who = assignment(replace(WAY_SHOT, clients=4, max_samples=2250), data_of(), tmp_path)
    assert max(rows.max() for rows in (*who.train, *who.validation)) < 2250
    # a quarter of the training samples, so a quarter of the test rows
    assert max(rows.max() for rows in who.test) < 9_000 + round((LABELS.size - 9_000) / 4)


@pytest.mark.parametrize("spec", [WAY_SHOT, MIXED])
def test_the_file_holds_what_was_drawn_and_other_settings_draw_other_rows(tmp_path, spec):
    data = data_of(domains=DOMAINS)
    usual = assignment(spec, data, tmp_path)
    for change in ({"ways": 4}, {"ways_spread": 0}, {"shots": 21}, {"shots_spread": 4}, {"seed": 1}, {"clients": 10}):
        other = assignment(replace(spec, **change), data, tmp_path)
        assert [own.tolist() for own in other.train] != [own.tolist() for own in usual.train]
    for change in ({}, {"alpha": 9.0}, {"classes_per_client": 5}, {"min_samples": 10_000}, {"test_share": 0.5}):
        assert alike(usual.held, assignment(replace(spec, **change), data, tmp_path).held)


@pytest.mark.parametrize(
    ("about", "spec", "word"),
    [
        ({}, MIXED, "'made' is one"),
        ({"domains": DOMAINS, "groups": np.arange(LABELS.size)}, MIXED, "in groups"),
        ({"groups": np.arange(LABELS.size)}, WAY_SHOT, "in groups"),
        ({"train_rows": LABELS.size, "domains": DOMAINS}, MIXED, "domain 'photo' has no official"),
        ({"train_rows": LABELS.size}, WAY_SHOT, "has none"),
    ],
)
def test_what_they_need_is_said(tmp_path, about, spec, word):
    with pytest.raises(DataError, match=word):
        assignment(spec, data_of(**about), tmp_path)


@pytest.mark.parametrize("split", ["official", "pooled"])
def test_a_site_s_own_rows_are_all_its_own(tmp_path, split):
    who = assignment(replace(MIXED, split=split), data_of(), tmp_path, own=True)
    assert sum(map(len, who.held)) == LABELS.size
    assert len(who.test[0]) == pytest.approx(LABELS.size - 9_000 if split == "official" else LABELS.size / 4, abs=1)
