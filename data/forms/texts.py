"""Many texts in one memory-mapped file: only the requested rows are read into memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CONTENT, BOUNDS = "inputs.utf8", "bounds.npy"


@dataclass(frozen=True, eq=False)
class Texts:
    """n texts in a file of UTF-8 bytes, a read-only memory map; `bounds` (n, 2) int64 are the start and end of each."""

    content: np.ndarray
    bounds: np.ndarray

    @classmethod
    def open(cls, folder: Path) -> Texts:
        """Open what write_texts has written to `folder`.

        Raises:
            OSError: it does not exist.
            ValueError: it is incomplete.
        """
        bounds = np.load(folder / BOUNDS)
        size = int(bounds.max(initial=0))
        if (folder / CONTENT).stat().st_size != size:
            raise ValueError(f"{CONTENT} does not have the {size} bytes that {BOUNDS} says")
        # an empty file cannot be mapped
        content = np.memmap(folder / CONTENT, np.uint8, mode="r") if size else np.empty(0, dtype=np.uint8)
        return cls(content, bounds)

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, rows: np.ndarray) -> list[str]:
        """The texts of `rows` (m,) int in 0..n−1, in that order."""
        rows = np.asarray(rows, dtype=np.int64)
        return [self.content[start:end].tobytes().decode() for start, end in self.bounds[rows].tolist()]

    def take(self, rows: np.ndarray, axis: int) -> Texts:
        """The texts of `rows`, like `numpy.ndarray.take`."""
        return Texts(self.content, self.bounds.take(rows, axis))


def write_texts(texts: Iterable[str], folder: Path) -> Texts:
    """Write texts to `folder`, which exists, with at most one of them in memory."""
    ends = [0]
    with (folder / CONTENT).open("wb") as stream:
        for text in texts:
            ends.append(ends[-1] + stream.write(text.encode()))
    np.save(folder / BOUNDS, np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64))
    return Texts.open(folder)
