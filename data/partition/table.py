"""The partition `table`: how many rows of each class each client holds, read from a CSV file: a row a client (by its
number in the column `client`), a column a class by its name, cells counts."""

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from protosphere.core.errors import DataError

TABLE = "table"
CLIENT = "client"


def table_digest(path: str) -> str:
    """What changes whenever the file's content does.

    Raises:
        DataError: it cannot be read.
    """
    return hashlib.sha256(_read(path).encode()).hexdigest()


def table_rows(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, path: str, class_names: Sequence[str]
) -> list[np.ndarray]:
    """Deal rows as a table counts them: those of each class in a seeded shuffle, the first clients first.

    Args:
        labels: (n,) int, the class of each row. path: the CSV file.
        num_clients: how many clients the table must have. class_names: in label order.

    Returns:
        For each client its positions in `labels`, sorted, int64. What the table does not ask for is nobody's.

    Raises:
        DataError: a file that is no such table, does not fit the clients or the classes, asks for more rows of a class
            than there are, or gives a client none.
    """
    demand = _counts(path, num_clients, class_names)
    had = np.bincount(labels, minlength=len(class_names))
    short = np.flatnonzero(demand.sum(axis=0) > had)
    if short.size:
        label = int(short[0])
        raise DataError(
            f"the partition table {path!r} asks for {demand[:, label].sum()} samples of class {class_names[label]!r}, "
            f"but {had[label]} are there: give the data that it was made of, leave max-samples 0, or lower that "
            "column.",
        )
    dealt: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label, column in enumerate(demand.T):
        rows = rng.permutation(np.flatnonzero(labels == label))
        for client_parts, part in zip(dealt, np.split(rows[: column.sum()], np.cumsum(column)[:-1]), strict=True):
            client_parts.append(part)
    return [np.sort(np.concatenate(client_parts)) for client_parts in dealt]


def _counts(path: str, num_clients: int, class_names: Sequence[str]) -> np.ndarray:
    """(clients, K) int64, the columns in label order."""

    def refusal(problem: str) -> DataError:
        return DataError(f"the partition table {path!r} {problem}.")

    try:
        head, *rows = [row for row in csv.reader(io.StringIO(_read(path), newline=""), strict=True) if row] or [[]]
    except csv.Error as error:
        raise refusal(f"is no CSV file ({error}): write it anew, one line a client") from None
    if head[:1] != [CLIENT] or sorted(head[1:]) != sorted(class_names):
        raise refusal(
            f"has the columns {', '.join(head) or 'of no name'}, but it needs {CLIENT!r} and then the data set's "
            f"{len(class_names)} classes by name: {', '.join(class_names)}"
        )
    if [row[0].strip() for row in rows] != [str(number) for number in range(num_clients)]:
        raise refusal(
            f"has {len(rows)} rows, but it needs one for each of the run's {num_clients} clients, which its first "
            "column numbers from 0 in that order: set clients to its number of rows, or mend it"
        )
    counts = np.zeros((num_clients, len(class_names)), dtype=np.int64)
    places = [class_names.index(name) for name in head[1:]]
    for number, row in enumerate(rows):
        if len(row) != len(head) or not all(cell.strip().isdecimal() and len(cell.strip()) < 10 for cell in row):
            raise refusal(
                f"does not hold a whole number for each of {len(head)} columns for client {number}: correct it"
            )
        counts[number, places] = [int(cell) for cell in row[1:]]
        if not counts[number].any():
            raise refusal(f"gives client {number} no sample: give it one, or remove it and number the others anew")
    return counts


def _read(path: str) -> str:
    try:
        # a spreadsheet may put a mark before the first name
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DataError(
            f"the partition table {path!r} cannot be read ({reason}): set partition-table to a CSV file that every "
            "client and the server can open.",
        ) from None
