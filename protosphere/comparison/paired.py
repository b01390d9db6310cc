"""Differences between methods, paired by seed, with t intervals, and Holm's correction for several of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

CONFIDENCE = 0.95
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """One method minus another.

    Attributes:
        mean: mean difference, in the unit of the figures (shares of 1).
        low, high: ends of the 95 % t interval; None for a single seed.
        seeds: number of seeds that both methods have.
        p: p-value of the paired t-test; None for a single seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    p: float | None = None


def difference(figures: Mapping[int, float | None], other: Mapping[int, float | None]) -> Difference | None:
    """`figures` minus `other` over the seeds that both have; None if there is none.

    Args:
        figures, other: seed -> figure, as a mapping or a series.
    """
    gaps = (pd.Series(figures, dtype=float) - pd.Series(other, dtype=float)).dropna()
    if gaps.empty:
        return None
    mean = float(gaps.mean())
    if len(gaps) == 1:
        return Difference(mean, None, None, 1)
    # equal differences, which rounding may change in their last digit, have no variance and thus no test
    if gaps.max() - gaps.min() < 1e-12:
        return Difference(mean, mean, mean, len(gaps), p=1.0)
    # SciPy's distributions take half a second to import
    from scipy.stats import ttest_1samp

    test = ttest_1samp(gaps, 0)
    low, high = test.confidence_interval(CONFIDENCE)
    return Difference(mean, float(low), float(high), len(gaps), float(test.pvalue))


def rejected(p_values: Sequence[float]) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: the smallest p at LEVEL / m, the next at LEVEL / (m - 1), and so on,
    until the first that is not."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    result = [False] * len(p_values)
    for place, number in enumerate(order):
        if p_values[number] > LEVEL / (len(p_values) - place):
            break
        result[number] = True
    return result
