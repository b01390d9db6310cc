"""The mixed partition: one domain a client and the domains evenly, its draws against the uniform distributions, whose
rows are whose, and what is refused."""

import dataclasses
import itertools

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.client_data import client_data
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.partition.few_shots import cells_of, few_shot_rows
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.samples import Samples
from tests.data.draws import alike, assert_distributed, disjoint

NAMES, PLACES = tuple("abcdef"), ("photo", "sketch", "art")
# of the third domain two classes have no row
TABLE = np.array([[900, 800, 700, 900, 800, 700], [600, 700, 900, 600, 700, 900], [800, 0, 700, 600, 0, 900]])
CELLS = np.random.default_rng(5).permutation(np.repeat(np.arange(18), TABLE.ravel()))
DOMAINS, LABELS = np.divmod(CELLS, 6)
USUAL = {"ways": 4, "ways_spread": 2, "shots": 6, "shots_spread": 3, "seed": 0}


def deal(labels=LABELS, domains=DOMAINS, clients=20, names=NAMES, places=PLACES, **settings):
    draws = USUAL | settings
    rng = np.random.default_rng([draws.pop("seed"), 0, 3])
    return few_shot_rows(labels, clients, rng, names, domains, places, **draws)


def counted(parts, labels=LABELS, domains=DOMAINS):
    """(clients, domains, classes): rows of each that each client got."""
    return class_counts(cells_of(labels, domains, 6), parts, 18).reshape(-1, 3, 6)


def drawn(seeds=60, **settings):
    """The table of `counted` of many seeds, (seeds · clients, domains, classes)."""
    return np.concatenate([counted(deal(seed=seed, **settings)) for seed in range(seeds)])


# --- what is drawn --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [3, 4, 20])
def test_each_client_has_one_domain_and_the_domains_are_dealt_evenly(clients):
    longest = []
    for of_domain in drawn(clients=clients).reshape(60, clients, 3, 6).any(axis=3):
        assert (of_domain.sum(axis=1) == 1).all()
        each = of_domain.sum(axis=0)
        assert set(each.tolist()) <= {clients // 3, -(-clients // 3)}
        longest.extend(np.flatnonzero(each == each.max()) if clients % 3 == 1 else [])
    # the odd client is of any domain
    if longest:
        assert_distributed(longest, dict.fromkeys(range(3), 1 / 3))


def test_which_client_has_which_domain_is_shuffled():
    own = (drawn(100, clients=6).sum(axis=2) > 0).argmax(axis=1).reshape(100, 6)
    for client in range(6):
        assert_distributed(own[:, client], dict.fromkeys(range(3), 1 / 3))


@pytest.mark.parametrize(
    ("ways", "spread", "whole", "third"),
    [
        (4, 2, dict.fromkeys(range(2, 7), 1 / 5), dict.fromkeys(range(2, 5), 1 / 3)),
        (5, 0, {5: 1.0}, {4: 1.0}),
        (2, 3, dict.fromkeys(range(2, 6), 1 / 4), dict.fromkeys(range(2, 5), 1 / 3)),
    ],
)
def test_numbers_of_classes_and_of_rows_are_uniform_within_what_the_domain_has(ways, spread, whole, third):
    counts = drawn(ways=ways, ways_spread=spread)
    held = (counts > 0).sum(axis=2)
    assert_distributed(held[:, :2][held[:, :2] > 0], whole)
    assert_distributed(held[:, 2][held[:, 2] > 0], third)
    shots = counts.max(axis=(1, 2))
    assert ((counts == 0) | (counts == shots[:, None, None])).all()
    assert_distributed(shots, dict.fromkeys(range(3, 10), 1 / 7))


# --- whose rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [0, 6])
def test_no_row_is_two_clients_and_the_seed_alone_decides(shots):
    parts = deal(shots=shots)
    disjoint(parts)
    assert len(parts) == 20
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    # what classes and domains are called does not matter
    assert alike(parts, deal(shots=shots, names=["x"] * 9, places=["y"] * 3))
    assert not alike(parts, deal(shots=shots, seed=100))


@pytest.mark.parametrize("seed", range(3))
def test_no_shots_share_all_rows_of_a_class_of_a_domain_evenly(seed):
    counts = counted(deal(shots=0, seed=seed, ways=3, ways_spread=1))
    for domain, label in itertools.product(range(3), range(6)):
        own = counts[:, domain, label]
        shares = own[own > 0]
        if shares.size:
            assert shares.sum() == TABLE[domain, label]
            assert shares.max() - shares.min() <= 1
    assert alike(*(deal(shots=0, shots_spread=spread, seed=seed) for spread in (0, 7)))


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shots", "has", "want", "lower"), [(3, 11, 12, "clients, shots or ways"), (0, 3, 4, "clients or ways")]
)
def test_a_class_of_a_domain_that_has_too_few_rows_is_named(shots, has, want, lower):
    domains, labels = np.divmod(np.repeat(np.arange(6), [20, 20, 20, has, 20, 20]), 2)
    words = f"class 'b' of domain 'sketch' has {has} samples, .* 4 clients .* want {want}: lower the number of {lower},"
    with pytest.raises(DataError, match=words):
        deal(labels, domains, 12, ways=2, ways_spread=0, shots=shots, shots_spread=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 2}, "gives each client one domain, but there are 2 clients for 3 domains"),
        ({"ways": 7}, "ways is 7, but it must lie between 2 and 6"),
        (
            {"labels": np.where(DOMAINS == 1, 4, LABELS)},
            "the samples of domain 'sketch' are of 1: raise max-samples if",
        ),
        ({"labels": LABELS[:0], "domains": DOMAINS[:0]}, "the samples of domain 'photo' are of 0"),
    ],
)
def test_what_cannot_be_dealt_is_named(change, words):
    with pytest.raises(DataError, match=words):
        deal(**change)


# --- of a data set --------------------------------------------------------------------------------------------------


def made(train_rows, groups=None, domains=DOMAINS, places=PLACES):
    inputs = np.arange(len(LABELS), dtype=np.float32)[:, None]
    return Samples(
        "made",
        inputs,
        LABELS,
        train_rows,
        NAMES,
        groups=groups,
        domains=domains,
        domain_names=places,
        key="made",
    )


DATA = made(9_000)
SPEC = DataSpec("made", 9, "mixed", ways=3, ways_spread=1, shots=20, shots_spread=5)
OFFICIAL = dataclasses.replace(SPEC, split="official")


@pytest.mark.parametrize("shots", [0, 20])
def test_a_client_is_tested_on_all_test_rows_of_its_domain_s_classes(tmp_path, shots):
    who = assignment(dataclasses.replace(OFFICIAL, shots=shots, shared_test_share=0.1), DATA, tmp_path)
    assert disjoint([*who.train, *who.validation]).max() < 9_000
    free = np.setdiff1d(np.arange(9_000, LABELS.size), who.shared)
    for train, test in zip(who.train, who.test, strict=True):
        assert test.size
        assert np.array_equal(test, free[np.isin(CELLS[free], CELLS[train])])
    tested = np.concatenate(who.test)
    assert np.unique(tested).size < tested.size
    assert [rows.size for rows in who.unheld] == [0] * 9


def test_pooled_rows_are_each_client_s_own_to_split(tmp_path):
    who = assignment(SPEC, DATA, tmp_path)
    # test rows of the data set are dealt, too
    assert disjoint(who.held).max() >= 9_000
    for train, test, validation, own in zip(who.train, who.test, who.validation, who.held, strict=True):
        assert test.size == pytest.approx(0.25 * own.size, abs=0.5)
        assert validation.size == pytest.approx(0.1 * own.size, abs=0.5)
        assert set(LABELS[own].tolist()) == set(LABELS[train].tolist())
        assert np.unique(DOMAINS[own]).size == 1
    counts = counted(who.held)
    assert set(counts[counts > 0].tolist()) <= set(range(15, 26))
    assert [rows.size for rows in who.unheld] == [0] * 9


@pytest.mark.parametrize("partition", ["mixed", "way-shot"])
def test_the_file_holds_what_was_drawn_and_other_settings_draw_other_rows(tmp_path, partition):
    spec = dataclasses.replace(OFFICIAL, partition=partition)
    usual, again = (assignment(spec, DATA, tmp_path) for _ in range(2))
    assert alike(usual.held, again.held)
    for change in ({"ways": 4}, {"ways_spread": 0}, {"shots": 21}, {"shots_spread": 4}, {"seed": 1}, {"clients": 10}):
        other = assignment(dataclasses.replace(spec, **change), DATA, tmp_path)
        assert [own.tolist() for own in other.train] != [own.tolist() for own in usual.train]
    for change in ({"alpha": 9.0}, {"classes_per_client": 5}, {"min_samples": 10_000}, {"test_share": 0.5}):
        assert alike(usual.held, assignment(dataclasses.replace(spec, **change), DATA, tmp_path).held)


@pytest.mark.parametrize(
    ("data", "spec", "words"),
    [
        (made(9_000, domains=None, places=()), SPEC, "but 'made' is one: set dataset to a list"),
        (made(9_000, domains=0 * DOMAINS, places=("a",)), SPEC, "but 'made' is one: set"),
        (made(9_000, np.arange(LABELS.size)), SPEC, "the mixed partition divides single samples, but those of 'made'"),
        (made(LABELS.size), OFFICIAL, "domain 'photo' has no official test samples"),
        (DATA, dataclasses.replace(OFFICIAL, max_samples=3), "are of 0: raise max-samples"),
    ],
)
def test_what_mixed_needs_is_said(tmp_path, data, spec, words):
    with pytest.raises(DataError, match=words):
        assignment(spec, data, tmp_path)


@pytest.mark.parametrize("partition", ["mixed", "way-shot"])
@pytest.mark.parametrize(("split", "tested"), [("official", LABELS.size - 9_000), ("pooled", round(LABELS.size / 4))])
def test_a_site_s_own_rows_are_all_its_own(tmp_path, partition, split, tested):
    spec = dataclasses.replace(SPEC, partition=partition, split=split)
    who = assignment(spec, made(9_000, domains=None, places=()), tmp_path, own=True)
    assert sum(map(len, who.held)) == LABELS.size
    assert len(who.test[0]) == pytest.approx(tested, abs=1)


def test_from_the_files_to_the_client(tmp_path, write, png):
    """Pixel values tell the domain and the class of an image."""
    for place, name in enumerate(PLACES):
        for split, rows in (("train", 40), ("test", 12)):
            images = [png(np.full((4 + place, 4), 50 * place + i % 4, dtype=np.uint8)) for i in range(rows)]
            write(tmp_path / "all" / name / f"{split}.parquet", images, np.arange(rows) % 4)
    spec = DataSpec(f"{tmp_path}/all/*", 6, "mixed", ways=2, ways_spread=0, shots=0, split="official")
    clients = [client_data(spec, partition, tmp_path / "cache") for partition in range(6)]
    assert sorted(each.domain for each in clients) == sorted(PLACES * 2)
    for each in clients:
        place = PLACES.index(each.domain)
        for rows in (each.train, each.validation, each.test):
            assert rows.inputs.shape[1:] == (1, 6, 4)
            assert (rows.inputs == (50 * place + rows.labels)[:, None, None, None]).all()
        assert len(each.test) == 6
        assert each.unheld is None
    for name, label in itertools.product(PLACES, range(4)):
        held = [rows for each in clients if each.domain == name for rows in (each.train, each.validation)]
        assert sum(int((rows.labels == label).sum()) for rows in held) in (0, 10)
    assert open_data(spec, tmp_path / "cache").domain_names == tuple(sorted(PLACES))
