"""Methods against each other, seed by seed.

Methods of a row have the same partition, initial models and samples of clients for a seed, so the difference of two of
them varies far less over seeds than either does. Its 95 % interval and its p are those of SciPy's paired t-test. Of
several methods against one baseline some differ by chance: Holm's correction says which differ by more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

CONFIDENCE = 0.95
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """One method less another.

    Attributes:
        mean: of the differences, as the figures are (shares of 1).
        low, high: ends of the interval; None of fewer than two seeds.
        seeds: how many both have.
        p: of the paired t-test; None of fewer than two seeds.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    p: float | None = None


def difference(figures: Mapping[int, float | None], other: Mapping[int, float | None]) -> Difference | None:
    """`figures` less `other` over the seeds that both have; None where there is none.

    Args:
        figures, other: seed -> figure, as a mapping or a series.
    """
    gaps = seed_gaps(figures, other)
    if not gaps:
        return None
    mean = float(pd.Series(gaps).mean())
    if len(gaps) == 1:
        return Difference(mean, None, None, 1)
    if _are_equal(gaps):
        # without a spread there is no test: all seeds agree
        return Difference(mean, mean, mean, len(gaps), p_value(gaps))
    # SciPy's distributions take half a second to load
    from scipy.stats import ttest_1samp

    low, high = ttest_1samp(gaps, 0).confidence_interval(CONFIDENCE)
    return Difference(mean, float(low), float(high), len(gaps), p_value(gaps))


def seed_gaps(figures: Mapping[int, float | None], other: Mapping[int, float | None]) -> list[float]:
    """`figures` less `other`, a number for each seed that both have; arguments as in `difference`."""
    return (pd.Series(figures, dtype=float) - pd.Series(other, dtype=float)).dropna().tolist()


def p_value(gaps: Sequence[float]) -> float:
    """Of a t-test that the mean difference is zero; 1 for equal differences, for which there is none: with few test
    samples, two seeds often have the same."""
    if _are_equal(gaps):
        return 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(gaps, 0).pvalue)


def _are_equal(gaps: Sequence[float]) -> bool:
    # two differences of accuracies may differ in their last digit
    return max(gaps) - min(gaps) < 1e-12


def rejected(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: the smallest p at level / m, the next at level / (m - 1), and so on,
    until the first that is not."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    result = [False] * len(p_values)
    for place, number in enumerate(order):
        if p_values[number] > level / (len(p_values) - place):
            break
        result[number] = True
    return result
