"""Differences seed by seed, held against SciPy's paired t test."""

import numpy as np
import pytest
from scipy import stats

from protosphere.comparison.paired import Difference, difference, rejected


def over_seeds(values):
    return dict(enumerate(values))


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
@pytest.mark.parametrize("shift", [0.0, 0.02, 0.5])
def test_the_interval_is_that_of_a_paired_t_test(seeds, shift):
    draw = np.random.default_rng(seeds)
    own, other = draw.normal(0.7 + shift, 0.05, seeds), draw.normal(0.7, 0.05, seeds)
    found = difference(over_seeds(own), over_seeds(other))
    test = stats.ttest_rel(own, other)
    expected = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.mean == pytest.approx((own - other).mean(), rel=1e-12)
    assert (not found.low <= 0 <= found.high) == (test.pvalue < 0.05)
    assert found.p == pytest.approx(test.pvalue, rel=1e-6)


def test_what_cannot_be_said_is_not():
    assert difference({0: 0.5}, {1: 0.5}) is None
    assert difference({0: None}, {0: 0.5}) is None
    assert difference({0: 0.5, 1: None}, {0: 0.25, 1: 0.1}) == Difference(0.25, None, None, 1)
    # as far apart for each seed: no spread at all, and zero stays outside
    assert difference({0: 0.5, 1: 0.25}, {0: 0.25, 1: 0.0}) == Difference(0.25, 0.25, 0.25, 2, p=1.0)
    same = difference({0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.25})
    assert (same.low, same.high, same.p) == (0, 0, 1)


def test_what_is_significant_alone_need_not_be_among_many():
    """Holm's second smallest p of three is held against 5 % / 2, the last of two against 5 % itself."""
    assert rejected([0.03]) == [True]
    assert rejected([0.03, 0.01, 0.03]) == [False, True, False]
    assert rejected([0.03, 0.01]) == [True, True]
    # what comes after the first that stays is not tried
    assert rejected([0.03, 0.001, 0.04, 0.049]) == [False, True, False, False]
    assert rejected([]) == []
