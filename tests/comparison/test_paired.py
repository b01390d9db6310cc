"""Differences paired by seed, against SciPy's paired t-test."""

import numpy as np
import pytest
from scipy import stats

from protosphere.comparison.paired import Difference, difference, rejected


@pytest.mark.parametrize("seeds", [2, 3, 20])
@pytest.mark.parametrize("shift", [0.0, 0.02, 0.5])
def test_interval_and_p_are_those_of_the_paired_t_test(seeds, shift):
    draw = np.random.default_rng(seeds)
    figures, other = draw.normal(0.7 + shift, 0.05, seeds), draw.normal(0.7, 0.05, seeds)
    gap = difference(dict(enumerate(figures)), dict(enumerate(other)))
    test = stats.ttest_rel(figures, other)
    interval = test.confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert gap.mean == pytest.approx((figures - other).mean(), rel=1e-12)
    assert gap.p == pytest.approx(test.pvalue, rel=1e-6)


@pytest.mark.parametrize(
    ("figures", "other", "expected"),
    [
        ({0: 0.5}, {1: 0.5}, None),
        ({0: None}, {0: 0.5}, None),
        ({0: 0.5, 1: None}, {0: 0.25, 1: 0.1}, Difference(0.25, None, None, 1)),
        # equal differences have no variance
        ({0: 0.5, 1: 0.25}, {0: 0.25, 1: 0.0}, Difference(0.25, 0.25, 0.25, 2, p=1.0)),
        ({1: 0.25, 0: 0.5}, {0: 0.5, 1: 0.25}, Difference(0.0, 0.0, 0.0, 2, p=1.0)),
    ],
)
def test_differences_without_a_test(figures, other, expected):
    assert difference(figures, other) == expected


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([], []),
        ([0.03], [True]),
        ([0.03, 0.01, 0.03], [False, True, False]),
        ([0.03, 0.01], [True, True]),
        # nothing is rejected after the first that is not
        ([0.03, 0.001, 0.04, 0.049], [False, True, False, False]),
    ],
)
def test_holms_procedure(p_values, expected):
    assert rejected(p_values) == expected
