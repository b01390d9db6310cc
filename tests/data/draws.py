"""What tests of data share: draws against their distribution, lists of rows, and data sets in memory."""

import numpy as np
from scipy.stats import chisquare

from protosphere.data.decode import open_data
from protosphere.data.partition.assignment import assignment
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec

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


def decoded(dataset, cache_dir, **recipe):
    """A data set from a cache, or decoded into it."""
    return open_data(DataSpec(dataset, **recipe), cache_dir)


def held_labels(spec, cache_dir):
    """How many rows of each class every client holds in all: (clients, K)."""
    data = open_data(spec, cache_dir)
    return class_counts(data.labels, assignment(spec, data, cache_dir).rows_by_client, len(data.class_names))


def made(labels, train_rows=None, class_names=(), **about):
    """A data set in memory of these labels, whose inputs all differ."""
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    names = class_names or tuple(map(str, range(int(labels.max()) + 1)))
    return Samples(
        "made", inputs, labels, len(labels) if train_rows is None else train_rows, names, key="made", **about
    )
