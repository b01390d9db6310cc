"""The partition `table`: the number of samples of each class that each client gets, from a CSV file.

The file has one row per client, with its number in the column `client`, and one column of counts per class.
"""

import csv
import hashlib
import io
from pathlib import Path

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.partition.units import Pool
from protosphere.data.spec import DataSpec

TABLE = "table"
CLIENT = "client"


def table_digest(path: str) -> str:
    """A digest of the file's content."""
    return hashlib.sha256(_read(path).encode()).hexdigest()


def divide_by_table(pool: Pool, spec: DataSpec, rng: np.random.Generator) -> list[np.ndarray]:
    """Divide samples by a table of counts: those of each class are shuffled and go to the clients in order.

    Returns:
        For each client, its positions in the pool, sorted, int64. Further samples are not used.
    """
    class_names = pool.samples.class_names
    demand = _read_counts(spec.partition_table, spec.clients, class_names)
    available = np.bincount(pool.labels, minlength=len(class_names))
    short = np.flatnonzero(demand.sum(axis=0) > available)
    if short.size:
        label = int(short[0])
        raise DataError(
            f"the partition table {spec.partition_table!r} asks for {demand[:, label].sum()} samples of class "
            f"{class_names[label]!r}, but {available[label]} are there: give the data that it was made of, leave "
            "max-samples 0, or lower that column."
        )
    parts: list[list[np.ndarray]] = [[] for _ in range(spec.clients)]
    for label, counts in enumerate(demand.T):
        rows = rng.permutation(np.flatnonzero(pool.labels == label))
        for client_parts, part in zip(parts, np.split(rows[: counts.sum()], np.cumsum(counts)[:-1]), strict=True):
            client_parts.append(part)
    return [np.sort(np.concatenate(client_parts)) for client_parts in parts]


def _read_counts(path: str, clients: int, class_names: tuple[str, ...]) -> np.ndarray:
    """(clients, K) int64, the columns in label order."""

    def refusal(problem: str) -> DataError:
        return DataError(f"the partition table {path!r} {problem}.")

    try:
        header, *rows = [row for row in csv.reader(io.StringIO(_read(path), newline=""), strict=True) if row] or [[]]
    except csv.Error as error:
        raise refusal(f"is no CSV file ({error}): write it anew, one line per client") from None
    if header[:1] != [CLIENT] or sorted(header[1:]) != sorted(class_names):
        raise refusal(
            f"has the columns {', '.join(header) or 'of no name'}, but it needs {CLIENT!r} and then the data set's "
            f"{len(class_names)} classes by name: {', '.join(class_names)}"
        )
    if [row[0].strip() for row in rows] != [str(number) for number in range(clients)]:
        raise refusal(
            f"has {len(rows)} rows, but it needs one for each of the run's {clients} clients, which its first column "
            "numbers from 0 in that order: set clients to its number of rows, or correct it"
        )
    counts = np.zeros((clients, len(class_names)), dtype=np.int64)
    places = [class_names.index(name) for name in header[1:]]
    for number, row in enumerate(rows):
        cells = [cell.strip() for cell in row[1:]]
        if len(cells) != len(places) or not all(cell.isdecimal() and len(cell) < 10 for cell in cells):
            raise refusal(f"has no whole number for each class for client {number}: correct it")
        counts[number, places] = [int(cell) for cell in cells]
        if not counts[number].any():
            raise refusal(f"gives client {number} no sample: give it one, or remove it and number the others anew")
    return counts


def _read(path: str) -> str:
    try:
        # a spreadsheet may put a byte order mark before the first name
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DataError(
            f"the partition table {path!r} cannot be read ({reason}): set partition-table to a CSV file that every "
            "client and the server can open."
        ) from None
