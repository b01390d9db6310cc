"""What the tests of several partitions compare: draws with their distribution, and lists of rows."""

import numpy as np
from scipy.stats import chisquare

# seeds are fixed, so a test that passes once passes always; the level is far below any that chance would miss
LEVEL = 1e-3


def assert_distributed(values, probabilities):
    """`values` come from {value: probability}: none else, and as often as that says (chi-square)."""
    expected = dict(sorted(probabilities.items()))
    seen, counts = np.unique(values, return_counts=True)
    assert seen.tolist() == list(expected)
    # of a single value there is nothing to test, and scipy says nan
    if len(expected) > 1:
        assert chisquare(counts, np.array(list(expected.values())) * np.size(values)).pvalue > LEVEL


def alike(one, other):
    """Whether two lists hold the same rows."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def disjoint(parts):
    """All rows of `parts`, each of which must be in one of them once, sorted."""
    rows = np.concatenate(parts)
    assert np.unique(rows).size == rows.size
    return np.sort(rows)
