"""Methods against each other, seed by seed.

Methods of a row have the same partition, initial models and samples of clients for a seed, so the difference of two of
them varies far less over seeds than either does. Its 95 % interval is Student's: mean ± t(0.975, n - 1) · s / √n of the
n differences, s their sample standard deviation (ddof 1).
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

CONFIDENCE = 0.95
MOST_SEEDS = 1000  # beyond that a difference is none that seeds would show


@dataclass(frozen=True)
class Difference:
    """One method less another.

    Attributes:
        mean: of the differences, as the figures are (shares of 1).
        low, high: ends of the interval; None of fewer than two seeds.
        seeds: how many both have.
        needed: with how many seeds the interval would leave zero out, if mean and spread stayed as they are; None
            where it does already, where one seed says nothing of the spread, or beyond `MOST_SEEDS`.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    needed: int | None = None

    @property
    def apart(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def difference(figures: Mapping[int, float | None], other: Mapping[int, float | None]) -> Difference | None:
    """`figures` less `other` over the seeds that both have; None where there is none.

    Args:
        figures, other: seed -> figure, as a mapping or a series.
    """
    gaps = seed_gaps(figures, other)
    if not gaps:
        return None
    mean = statistics.fmean(gaps)
    if len(gaps) == 1:
        return Difference(mean, None, None, 1)
    std = statistics.stdev(gaps)
    half = _half_width(std, len(gaps))
    low, high = mean - half, mean + half
    needed = None
    if low <= 0 <= high:
        needed = next((n for n in range(len(gaps) + 1, MOST_SEEDS + 1) if _half_width(std, n) < abs(mean)), None)
    return Difference(mean, low, high, len(gaps), needed)


def seed_gaps(figures: Mapping[int, float | None], other: Mapping[int, float | None]) -> list[float]:
    """`figures` less `other`, a number for each seed that both have; arguments as in `difference`."""
    return (pd.Series(figures, dtype=float) - pd.Series(other, dtype=float)).dropna().tolist()


def ahead(figures: Mapping[str, Mapping[int, float | None]]) -> str | None:
    """The method whose mean is highest and apart from that of every other one, seed by seed; None where there is none.

    Args:
        figures: method -> seed -> figure, as mappings or a frame.
    """
    frame = pd.DataFrame(figures, dtype=float)
    means = frame.mean().dropna()
    if len(means) < 2:
        return None
    best = str(means.idxmax())
    contrasts = [difference(frame[best], frame[name]) for name in means.index if name != best]
    return best if all(gap is not None and gap.apart and gap.mean > 0 for gap in contrasts) else None


def _half_width(std: float, seeds: int) -> float:
    # SciPy's distributions take half a second to load
    from scipy.special import stdtrit

    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(seeds)
