"""The units that are divided: samples, or groups of samples (such as a patient's) that stay together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.samples import Samples, number_by_first


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples `rows` (m,) int64 of a data set as units, numbered by their first rows.

    Attributes:
        labels: (u,) int64, each unit's most frequent class, the lowest one of a tie.
        unit_of_row: (m,) int64; None if each row is a unit.
    """

    samples: Samples
    rows: np.ndarray
    labels: np.ndarray
    unit_of_row: np.ndarray | None

    @classmethod
    def of(cls, samples: Samples, rows: np.ndarray) -> Pool:
        """The pool of some samples."""
        labels = samples.labels[rows]
        if samples.groups is None or not rows.size:
            return cls(samples, rows, labels, None)
        unit_of_row = number_by_first(samples.groups[rows])
        num_classes = int(labels.max()) + 1
        pairs, counts = np.unique(unit_of_row * num_classes + labels, return_counts=True)
        units, classes = np.divmod(pairs, num_classes)
        order = np.lexsort((classes, -counts, units))
        heads = np.unique(units[order], return_index=True)[1]
        return cls(samples, rows, classes[order][heads], unit_of_row)

    def __len__(self) -> int:
        return len(self.labels)

    def rows_of(self, units: np.ndarray) -> np.ndarray:
        """The data set's rows of some units, sorted."""
        if self.unit_of_row is None:
            return np.sort(self.rows[units])
        return np.sort(self.rows[_mark(units, len(self))[self.unit_of_row]])

    def whole_units(self, positions: np.ndarray) -> np.ndarray:
        """The units whose rows are all at `positions` (k,) of `rows`, sorted."""
        if self.unit_of_row is None:
            return np.sort(positions)
        outside = ~_mark(positions, len(self.rows))
        return np.flatnonzero(~_mark(self.unit_of_row[outside], len(self)))

    def by_unit(self, values: np.ndarray) -> np.ndarray:
        """The value of each unit, (u,), from the values (n,) of all samples."""
        values = values[self.rows]
        if self.unit_of_row is None:
            return values
        by_unit = np.zeros(len(self), dtype=values.dtype)
        by_unit[self.unit_of_row] = values
        if not np.array_equal(by_unit[self.unit_of_row], values):
            raise DataError(
                "samples that share a group have several values in partition-column, but a group goes to one client: "
                "name another group-column, or none."
            )
        return by_unit


def _mark(positions: np.ndarray, size: int) -> np.ndarray:
    marked = np.zeros(size, dtype=bool)
    marked[positions] = True
    return marked
