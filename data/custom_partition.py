"""The partition `column`, one value of a column a client, and a partition of somebody's own."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from protosphere.core.errors import DataError, public

COLUMN = "column"


class Code(Protocol):
    """Somebody's own callable; a frozen dataclass of strings, so that it can name an entry of a cache."""

    @property
    def name(self) -> str:
        """What it is called."""

    def __call__(self, *arguments: object) -> object:
        """What it returns."""


def column_clients(values: np.ndarray, num_clients: int) -> dict[int, int]:
    """Which client each value goes to: in their order, round robin where there are more than clients.

    Args:
        values: (n,) int, numbered in the order of the column's values.

    Raises:
        DataError: fewer values than clients.
    """
    distinct = np.unique(values).tolist()
    if len(distinct) < num_clients:
        raise DataError.public(
            f"{num_clients} clients need as many values in partition-column, one each, but it has {len(distinct)}: set "
            "clients to that number or fewer."
        )
    return {value: number % num_clients for number, value in enumerate(distinct)}


def column_rows(values: np.ndarray, clients: dict[int, int], num_clients: int) -> list[np.ndarray]:
    """Positions of each client in `values` (n,), sorted; those of a value that `clients` lacks are nobody's."""
    whose = np.array([clients.get(value, -1) for value in values.tolist()], dtype=np.int64)
    return [np.flatnonzero(whose == number) for number in range(num_clients)]


def unit_values(values: np.ndarray, of_row: np.ndarray | None, num_units: int) -> np.ndarray:
    """The value of each unit of rows (u,), of the rows' values (n,).

    Raises:
        DataError: rows of one group have several values.
    """
    if of_row is None:
        return values
    values_by_unit = np.zeros(num_units, dtype=values.dtype)
    values_by_unit[of_row] = values
    if not np.array_equal(values_by_unit[of_row], values):
        raise DataError.public(
            "rows that share a group have several values in partition-column, but a group goes to one client: name "
            "another group-column, or none."
        )
    return values_by_unit


def dealt_by_code(
    code: Code, labels: np.ndarray, groups: np.ndarray | None, num_clients: int, seed: int
) -> list[np.ndarray]:
    """What somebody's own partition gives each client: sorted positions in `labels` (n,) int64.

    It is called with (labels, groups, clients, seed): copies, `groups` (n,) int64 or None. Rows that it leaves out are
    nobody's.

    Raises:
        DataError: it fails, or gives no list of as many arrays of whole numbers in 0..n−1, all different.
    """
    result = code(labels.copy(), None if groups is None else groups.copy(), num_clients, seed)
    try:
        parts = [np.asarray(part).reshape(-1) for part in _sequence(result)]
        parts = [part.astype(np.int64) if not part.size else part for part in parts]
    except (TypeError, ValueError) as error:
        raise _make_error(code, f"gives what is no list of arrays ({error})") from None
    if len(parts) != num_clients:
        raise _make_error(code, f"gives {len(parts)} arrays, but there are {num_clients} clients")
    for number, part in enumerate(parts):
        if part.dtype.kind not in "iu":
            raise _make_error(code, f"gives client {number} {part.dtype}, but rows are whole numbers")
        if not part.size:
            raise _make_error(code, f"gives client {number} no row")
        if part.min() < 0 or part.max() >= len(labels):
            raise _make_error(
                code, f"gives client {number} row {part.min() if part.min() < 0 else part.max()} of {len(labels)}"
            )
    rows, counts = np.unique(np.concatenate(parts), return_counts=True)
    if (counts > 1).any():
        raise _make_error(code, f"gives row {rows[counts.argmax()]} twice")
    parts = [np.sort(part).astype(np.int64) for part in parts]
    if groups is not None:
        whose = np.full(len(labels), -1)
        for number, part in enumerate(parts):
            whose[part] = number
        _, first, codes = np.unique(groups, return_index=True, return_inverse=True)
        if not np.array_equal(whose[first][codes], whose):
            raise _make_error(code, "parts a group, but the rows of one stay together")
    return parts


def _sequence(value: object) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"a {type(value).__name__}")
    return list(value)


def _make_error(code: Code, what: str) -> DataError:
    return DataError(
        f"the partition {code.name!r} {what}: let it return a list with an array of different row numbers for each "
        "client.",
        public("user-code"),
    )
