"""Rows that share a group stay together: units against loops, and no group on two sides of any split."""

from collections import Counter

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.partition.assignment import DataSpec, assignment
from protosphere.data.partition.groups import Units
from protosphere.data.samples import Samples


def rows_with_groups(seed, rows=900, groups=250, classes=4):
    rng = np.random.default_rng(seed)
    return rng.integers(classes, size=rows), rng.integers(groups, size=rows) * 7 - 300


def made(labels, groups, train_rows=None, key="made"):
    """A decoded data set of `labels` whose inputs all differ."""
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    names = tuple(str(k) for k in range(int(labels.max()) + 1))
    return Samples(
        "made", inputs, labels, len(labels) if train_rows is None else train_rows, names, groups=groups, key=key
    )


@pytest.mark.parametrize("seed", range(3))
def test_units_are_those_of_a_loop(seed):
    labels, groups = rows_with_groups(seed, rows=60, groups=25)
    units = Units.of(labels, groups)
    first_seen = list(dict.fromkeys(groups.tolist()))
    assert len(units) == len(first_seen)
    for unit, group in enumerate(first_seen):
        held = [int(label) for label, other in zip(labels, groups, strict=True) if other == group]
        most = max(Counter(held).values())
        assert units.labels[unit] == min(label for label in held if held.count(label) == most)
        assert units.rows(np.array([unit])).tolist() == [row for row in range(60) if groups[row] == group]
    chosen = np.array([9, 2, 5])
    wanted = [row for row in range(60) if first_seen.index(groups[row]) in (9, 2, 5)]
    assert units.rows(chosen).tolist() == wanted
    assert units.whole(np.array(wanted)).tolist() == [2, 5, 9]
    # one row less, and its unit is not whole any more
    without = np.array(wanted[1:])
    assert units.whole(without).tolist() == sorted({2, 5, 9} - {first_seen.index(groups[wanted[0]])})
    # what the groups are called does not matter
    renamed = Units.of(labels, -3 * groups)
    assert np.array_equal(units.of_row, renamed.of_row)
    assert np.array_equal(units.labels, renamed.labels)


def sides(who):
    """Every part that must be apart from all others, by name."""
    parts = {"shared": who.shared}
    for name in ("train", "test", "validation"):
        parts |= {f"{name} {client}": rows for client, rows in enumerate(getattr(who, name))}
    return parts


@pytest.mark.parametrize(("seed", "scheme"), [(0, "iid"), (1, "dirichlet"), (2, "pathological")])
def test_no_group_is_on_two_sides_and_no_row_is_lost(tmp_path, scheme, seed):
    labels, groups = rows_with_groups(seed)
    spec = DataSpec("made", clients=5, partition=scheme, alpha=0.5, min_samples=8, shared_test_share=0.2, seed=seed)
    who = assignment(spec, made(labels, groups), tmp_path)
    parts = sides(who)
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(900))
    side_of = {}
    for name, rows in parts.items():
        assert np.array_equal(rows, np.unique(rows))
        for group in groups[rows].tolist():
            assert side_of.setdefault(group, name) == name
    # shares and min-samples count groups
    held = [np.unique(groups[rows]).size for rows in who.held]
    assert min(held) >= 8
    total = np.unique(groups).size
    assert np.unique(groups[who.shared]).size == round(0.2 * total)
    for client, count in enumerate(held):
        assert abs(np.unique(groups[who.test[client]]).size - 0.25 * count) <= 0.5


@pytest.mark.parametrize(("seed", "own"), [(0, False), (1, True), (2, False)])
def test_official_deals_groups_of_each_table(tmp_path, seed, own):
    labels, groups = rows_with_groups(seed)
    # the later table has patients of its own
    groups = np.where(np.arange(900) < 600, groups, groups + 10_000)
    share = 0.0 if own else 0.25
    spec = DataSpec("made", clients=4, alpha=1.0, min_samples=5, split="official", shared_test_share=share, seed=seed)
    who = assignment(spec, made(labels, groups, train_rows=600), tmp_path, own=own)
    parts = sides(who)
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(900))
    for name, rows in parts.items():
        if rows.size:
            assert (rows.min() >= 600) == name.startswith(("test", "shared"))
            others = np.concatenate([other for key, other in parts.items() if key != name])
            assert not np.isin(groups[rows], groups[others]).any()
    assert all(rows.size for rows in who.validation)


def test_official_refuses_a_group_of_both_tables(tmp_path):
    labels, groups = np.array([0, 1, 0, 1, 0]), np.array([5, 6, 7, 8, 6])
    spec = DataSpec("made", clients=1, min_samples=1, split="official")
    with pytest.raises(DataError) as caught:
        assignment(spec, made(labels, groups, train_rows=3), tmp_path)
    assert "row 1 of the test table of 'made' has the group of row 1 of the train table: drop" in str(caught.value)
    assert 'set split = "pooled"' in str(caught.value)
    assert assignment(DataSpec("made", 1, min_samples=1), made(labels, groups, train_rows=3), tmp_path).train


def test_groups_count_where_too_few_are_asked_for(tmp_path):
    labels, groups = np.zeros(100, dtype=np.int64), np.arange(100) // 20
    with pytest.raises(
        DataError, match=r"has 5: lower .* max-samples if it is set; samples that share a group count as one here\.$"
    ):
        assignment(DataSpec("made", clients=6, min_samples=1), made(labels, groups), tmp_path)
    one = assignment(DataSpec("made", clients=1, min_samples=1), made(labels, groups), tmp_path)
    # of five patients round(1.25) are tested on, and half of one, so one, validates
    assert [len(each[0]) for each in (one.train, one.test, one.validation)] == [60, 20, 20]


def test_no_row_of_a_group_is_set_aside_if_another_row_is_copied(tmp_path):
    labels, groups = np.zeros(40, dtype=np.int64), np.arange(40) // 2
    data = made(labels, groups)
    data.inputs[20:40:2] = data.inputs[0]
    spec = DataSpec("made", clients=1, min_samples=1, shared_test_share=0.5)
    shared = assignment(spec, data, tmp_path).shared
    # the groups of rows 2 to 19 are free of copies: half of nine, rounded up
    assert np.unique(groups[shared]).size == 5
    assert shared.min() >= 2
    assert shared.max() < 20
