"""A split by a site's secret: a row, or a group, less moves no other."""

import numpy as np
import pytest

from protosphere.data.partition.assignment import DataSpec, assignment
from protosphere.data.partition.groups import Units
from protosphere.data.partition.secret_split import secret_split
from protosphere.data.samples import Samples

SECRET, OTHER = "07" * 32, "08" * 32


def made(inputs, groups=None, key="made"):
    labels = np.arange(len(inputs)) % 3
    return Samples("made", inputs, labels, len(inputs), ("a", "b", "c"), groups=groups, key=key)


def sides(inputs, groups=None, secret=SECRET):
    """content -> side."""
    data = made(inputs, groups)
    units = Units.of(data.labels, groups)
    parts = secret_split(data, np.arange(len(inputs)), units, secret, 0.25, 0.1)
    assert sorted(np.concatenate(parts)) == list(range(len(units)))
    return {float(inputs[row, 0]): side for side, part in enumerate(parts) for row in units.rows(part)}


@pytest.mark.parametrize("grouped", [False, True])
def test_a_unit_less_moves_no_other_and_order_says_nothing(grouped):
    rng = np.random.default_rng(0)
    inputs = rng.permutation(600).astype(np.float32)[:, None]
    groups = rng.integers(60, size=600) if grouped else None
    whole = sides(inputs, groups)
    for gone in range(5):
        kept = groups != gone if groups is not None else np.arange(600) != gone
        less = sides(inputs[kept], None if groups is None else groups[kept])
        assert less == {content: side for content, side in whole.items() if content in less}
    order = rng.permutation(600)
    assert sides(inputs[order], None if groups is None else groups[order]) == whole
    assert sides(inputs, groups, OTHER) != whole
    counted = np.bincount(list(whole.values()), minlength=3) / 600
    assert np.allclose(counted, [0.65, 0.25, 0.1], atol=0.2 if grouped else 0.06)


def test_the_assignment_of_a_sites_own_rows_uses_it(tmp_path):
    data = made(np.arange(90, dtype=np.float32)[:, None])
    plain, secret = (assignment(DataSpec("made", 1, secret=word), data, tmp_path, own=True) for word in ("", SECRET))
    units = Units.of(data.labels, None)
    expected = secret_split(data, np.arange(90), units, SECRET, 0.25, 0.1)
    assert all(
        np.array_equal(*pair)
        for pair in zip((secret.train[0], secret.test[0], secret.validation[0]), expected, strict=True)
    )
    assert not np.array_equal(plain.train[0], secret.train[0])
