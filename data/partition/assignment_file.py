"""An assignment of rows to clients as a value and as a file, which a process reads once for all of them."""

import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from protosphere.core.files import replacing


@dataclass(frozen=True, eq=False)
class Assignment:
    """For every client the rows of the decoded data set that it trains, tests and validates on, sorted; and those of
    the shared test set, which no client holds.

    A row has one place, but for the official test rows of `way-shot` and `mixed`, which belong to every client of their
    class (and domain).
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    validation: list[np.ndarray]
    shared: np.ndarray

    @property
    def held(self) -> list[np.ndarray]:
        """All rows of each client."""
        return [self.held_by(client) for client in range(len(self.train))]

    def held_by(self, client: int) -> np.ndarray:
        """All rows of one."""
        return np.concatenate([self.train[client], self.test[client], self.validation[client]])


def write_assignment(file: Path, row_assignment: Assignment) -> None:
    """Whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    parts = [
        *row_assignment.train,
        *row_assignment.test,
        *row_assignment.validation,
        row_assignment.shared,
    ]
    with replacing(file) as partial, partial.open("wb") as stream:
        np.savez(stream, rows=np.concatenate(parts), lengths=np.array([len(part) for part in parts]))


def read_assignment(file: Path, total: int) -> Assignment | None:
    """Inverse of `write_assignment`, not to be written into; None if the file is not there, not whole, or of more rows
    than `total`."""
    try:
        stat = file.stat()
        return _read(file, total, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


# Of 10,000 clients it takes 75 ms, and each of them asks for its own part. That it could not be read is not kept: it
# may be a limit on open files.
@lru_cache(maxsize=2)
def _read(file: Path, total: int, stamp: tuple[int, int, int]) -> Assignment:
    with np.load(file) as stored:
        rows, lengths = stored["rows"], stored["lengths"]
    if lengths.sum() != rows.size or lengths.size % 3 != 1 or (rows.size and rows.max() >= total):
        raise ValueError("it is not whole, or of other data")
    rows.setflags(write=False)
    *parts, shared = np.split(rows, np.cumsum(lengths)[:-1])
    of_kind = len(parts) // 3
    train, test, validation = (parts[start : start + of_kind] for start in range(0, len(parts), of_kind))
    return Assignment(train, test, validation, shared)
