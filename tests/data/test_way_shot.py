"""The w-way s-shot partition: its draws against the uniform distributions, whose rows are whose, what is refused."""

import dataclasses
import itertools

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.partition.assignment import DataSpec, assignment
from protosphere.data.partition.few_shots import few_shot_rows
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.samples import Samples
from tests.data.draws import alike, assert_distributed, disjoint

LABELS = np.random.default_rng(3).permutation(np.arange(12_000) % 10)
NAMES = tuple("abcdefghij")
USUAL = {"ways": 4, "ways_spread": 2, "shots": 6, "shots_spread": 3, "seed": 0}


def deal(labels=LABELS, clients=40, names=NAMES, **settings):
    draws = USUAL | settings
    rng = np.random.default_rng([draws.pop("seed"), 0, 2])
    return few_shot_rows(labels, clients, rng, names, **draws)


def counted(seeds=40, labels=LABELS, num_classes=10, **settings):
    """(seeds · clients, K): rows of each class that each client got."""
    return np.concatenate(
        [class_counts(labels, deal(labels, seed=seed, **settings), num_classes) for seed in range(seeds)]
    )


# --- what is drawn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "spread", "probabilities"),
    [
        (4, 2, dict.fromkeys(range(2, 7), 1 / 5)),
        (5, 0, {5: 1.0}),
        # from 1, which is no number of classes, to 5; from 6 to 12, of 10 classes
        (3, 2, dict.fromkeys(range(2, 6), 1 / 4)),
        (9, 3, dict.fromkeys(range(6, 11), 1 / 5)),
    ],
)
def test_the_number_of_classes_is_uniform_within_its_bounds(ways, spread, probabilities):
    assert_distributed((counted(ways=ways, ways_spread=spread) > 0).sum(axis=1), probabilities)


@pytest.mark.parametrize(
    ("shots", "spread", "probabilities"),
    [
        (6, 3, dict.fromkeys(range(3, 10), 1 / 7)),
        (4, 0, {4: 1.0}),
        # from −1, which is no number of rows, to 3
        (1, 2, dict.fromkeys(range(1, 4), 1 / 3)),
    ],
)
def test_the_number_of_rows_is_uniform_and_the_same_of_each_class_of_a_client(shots, spread, probabilities):
    counts = counted(ways=2, ways_spread=0, shots=shots, shots_spread=spread)
    pairs = counts[counts > 0].reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert_distributed(pairs[:, 0], probabilities)


def test_every_set_of_classes_is_as_likely():
    labels = LABELS[LABELS < 5]
    held = counted(labels=labels, num_classes=5, names=NAMES[:5], ways=3, ways_spread=0) > 0
    every = [sum(1 << k for k in chosen) for chosen in itertools.combinations(range(5), 3)]
    assert_distributed(held @ (1 << np.arange(5)), dict.fromkeys(every, 1 / 10))


def test_every_row_of_a_class_is_as_likely_for_the_first_and_the_last_client():
    few = {"ways": 2, "ways_spread": 0, "shots": 2, "shots_spread": 0}
    parts = [deal(np.repeat([0, 1], 8), 3, "ab", **few, seed=seed) for seed in range(300)]
    for client in (0, 2):
        # two of eight a draw: less spread than independent draws, so the test errs on the side of passing
        assert_distributed(np.concatenate([part[client] for part in parts]), dict.fromkeys(range(16), 1 / 16))


# --- whose rows -------------------------------------------------------------------------------------------------


def test_no_row_is_two_clients_most_are_nobodys_and_the_seed_alone_decides():
    first, again, other = deal(), deal(), deal(seed=1)
    for parts in (first, other):
        assert len(parts) == 40
        assert 40 * 2 * 3 <= disjoint(parts).size <= 40 * 6 * 9
        assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert alike(first, again)
    assert not alike(first, other)
    # what the classes are called does not matter, nor classes that have no row
    assert alike(first, deal(3 * LABELS + 2, names=["x"] * 40))


@pytest.mark.parametrize(
    ("rows", "ways", "shots", "words"),
    [
        # by its name though a class before it has no row; the one that lacks most, and how many lack some as well
        (
            [0, 12, 11],
            2,
            4,
            r"class 'c' has 11 samples, but the 3 clients .* way-shot partition want 12: lower",
        ),
        ([0, 9, 5, 0, 11], 3, 4, r"class 'c' has 5 .* the 3 clients .* want 12 \(and 2 more classes lack samples\):"),
        ([0, 8, 5, 0, 11], 3, 3, r"class 'c' has 5 .* want 9 \(and 1 more class lacks samples\):"),
    ],
)
def test_a_class_that_has_too_few_rows_is_named(rows, ways, shots, words):
    few = {"ways": ways, "ways_spread": 0, "shots": shots, "shots_spread": 0}
    with pytest.raises(DataError, match=words):
        deal(np.repeat(np.arange(len(rows)), rows), 3, **few)
    # as many as are wanted are given out whole
    enough = np.repeat(np.arange(ways), 3 * shots)
    parts = deal(enough, 3, **few)
    assert disjoint(parts).size == enough.size
    assert class_counts(enough, parts, ways).tolist() == [[shots] * ways] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ways": 1}, "ways is 1, but it must lie between 2 and 10"),
        ({"ways": 11}, "ways is 11, but it must lie between 2 and 10"),
        ({"shots": 0}, "shots is 0"),
        ({"labels": np.zeros(9, dtype=np.int64)}, "at least 2 classes, but the training samples are of 1"),
        ({"labels": np.empty(0, dtype=np.int64)}, "at least 2 classes, but the training samples are of 0"),
    ],
)
def test_what_cannot_be_dealt_is_named(change, words):
    with pytest.raises(DataError, match=words):
        deal(**change)


# --- of a data set ----------------------------------------------------------------------------------------------


def made(labels, train_rows, groups=None):
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Samples("made", inputs, labels, train_rows, NAMES, groups=groups, key="made")


DATA = made(LABELS, 10_000)
SPEC = DataSpec("made", 15, "way-shot", ways=3, ways_spread=2, shots=20, shots_spread=5, split="official")


def having(rows, own):
    """Those of `rows` whose classes are among those of the rows `own`."""
    classes = set(LABELS[own].tolist())
    return [row for row in rows if LABELS[row] in classes]


@pytest.mark.parametrize(("seed", "share"), [(0, 0.0), (1, 0.2)])
def test_a_client_is_tested_on_all_test_rows_of_its_classes(tmp_path, seed, share):
    who = assignment(dataclasses.replace(SPEC, shared_test_share=share, seed=seed), DATA, tmp_path)
    assert who.shared.size == round(share * 2000)
    assert disjoint([*who.train, *who.validation]).max() < 10_000
    free = np.setdiff1d(np.arange(10_000, 12_000), who.shared)
    for train, test, validation, unheld in zip(who.train, who.test, who.validation, who.unheld, strict=True):
        assert validation.size == pytest.approx(0.1 * (train.size + validation.size), abs=0.5)
        assert having(validation, train) == validation.tolist()
        assert test.tolist() == having(free.tolist(), train)
        assert np.array_equal(np.union1d(test, unheld), free)
        assert not np.isin(LABELS[unheld], LABELS[test]).any()
    # clients that share a class share its test rows
    tested = np.concatenate(who.test)
    assert np.unique(tested).size < tested.size
    counts = class_counts(LABELS, [np.concatenate([a, b]) for a, b in zip(who.train, who.validation, strict=True)], 10)
    assert set(counts[counts > 0].tolist()) <= set(range(15, 26))


def test_max_samples_leaves_the_first_rows_to_be_drawn_from(tmp_path):
    who = assignment(dataclasses.replace(SPEC, clients=4, max_samples=2500), DATA, tmp_path)
    assert max(rows.max() for rows in (*who.train, *who.validation)) < 2500
    # a quarter of the training samples, so a quarter of the test rows
    for train, test in zip(who.train, who.test, strict=True):
        assert test.tolist() == having(range(10_000, 10_500), train)
    with pytest.raises(DataError, match=r"class '.' has .* samples, but the .* clients .* raise max-samples"):
        assignment(dataclasses.replace(SPEC, max_samples=300), DATA, tmp_path)


@pytest.mark.parametrize(
    ("data", "change", "words"),
    [
        (made(LABELS, 12_000), {}, "'made' has no official test samples, which the way-shot partition tests on"),
        (made(LABELS, 10_000, np.arange(12_000)), {}, "those of 'made' come in groups"),
    ],
)
def test_what_way_shot_needs_is_said(tmp_path, data, change, words):
    with pytest.raises(DataError, match=words):
        assignment(dataclasses.replace(SPEC, **change), data, tmp_path)
