"""Rows that share a group, a patient say, as one unit: units are dealt and split, and their rows follow them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Units:
    """n rows as u units, numbered by their first rows.

    `labels` (u,) int is each unit's most frequent class, the lowest of equals; `of_row` (n,) int64 each row's unit,
    None where each row is a unit of its own.
    """

    labels: np.ndarray
    of_row: np.ndarray | None

    @classmethod
    def of(cls, labels: np.ndarray, groups: np.ndarray | None) -> Units:
        """Of rows with `labels` (n,) int of at least 0 and `groups` (n,) int; None: each row is its own unit."""
        if groups is None or not len(groups):
            return cls(labels, None)
        of_row = by_first(groups)
        num_classes = int(labels.max()) + 1
        pairs, counts = np.unique(of_row * num_classes + labels, return_counts=True)
        units, classes = np.divmod(pairs, num_classes)
        order = np.lexsort((classes, -counts, units))
        heads = np.unique(units[order], return_index=True)[1]
        return cls(classes[order][heads].astype(labels.dtype), of_row)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, units: np.ndarray) -> np.ndarray:
        """All rows of the `units` (m,) int, sorted."""
        if self.of_row is None:
            return np.sort(units)
        return np.flatnonzero(_mark(units, len(self))[self.of_row])

    def whole(self, rows: np.ndarray) -> np.ndarray:
        """The units all of whose rows are among `rows` (m,) int, sorted."""
        if self.of_row is None:
            return np.sort(rows)
        outside = ~_mark(rows, len(self.of_row))
        return np.flatnonzero(~_mark(self.of_row[outside], len(self)))


def by_first(values: np.ndarray) -> np.ndarray:
    """A number for each value, by its first row: (n,) int64."""
    import pandas as pd

    numbers: np.ndarray = pd.factorize(values)[0].astype(np.int64)
    return numbers


def shared_group(groups: np.ndarray, train_rows: int) -> tuple[int, int] | None:
    """A row of the first `train_rows` and a later one that share a group, the first of each; None if none do."""
    later = np.flatnonzero(np.isin(groups[train_rows:], groups[:train_rows]))
    if not later.size:
        return None
    second = train_rows + int(later[0])
    return int(np.flatnonzero(groups[:train_rows] == groups[second])[0]), second


def _mark(positions: np.ndarray, size: int) -> np.ndarray:
    marked = np.zeros(size, dtype=bool)
    marked[positions] = True
    return marked
