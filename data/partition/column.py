"""The partitions `column` and `sites`: the rows of one value of a column, or one data set of a list, to each client."""

import numpy as np

from protosphere.core.errors import DataError

COLUMN = "column"
SITES = "sites"


def column_clients(values: np.ndarray, num_clients: int, what: str = COLUMN) -> dict[int, int]:
    """Which client each value goes to: in their order, round robin where there are more than clients.

    Args:
        values: (n,) int, numbered in the order of the column's values, or of the list.
        what: the partition.

    Raises:
        DataError: fewer values than clients.
    """
    distinct = np.unique(values).tolist()
    if len(distinct) < num_clients and what == SITES:
        raise DataError(
            f"{num_clients} clients need as many data sets in dataset, one each, but it lists {len(distinct)}: set "
            "clients to that number or fewer, or take another partition than sites."
        )
    if len(distinct) < num_clients:
        raise DataError(
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
        raise DataError(
            "samples that share a group have several values in partition-column, but a group goes to one client: name "
            "another group-column, or none."
        )
    return values_by_unit
