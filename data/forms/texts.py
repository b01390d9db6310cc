"""Many texts in one memory-mapped file: only the requested rows are read into memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

CONTENT, ENDS = "inputs.utf8", "ends.npy"


class Texts:
    """n texts: their concatenated UTF-8 bytes, a read-only memory map, and `ends` (n,) int64, the end of each."""

    def __init__(self, content: np.ndarray, ends: np.ndarray) -> None:
        self._content = content
        self._ends = ends

    @classmethod
    def open(cls, folder: Path) -> Texts:
        """Open what write_texts has written to `folder`.

        Raises:
            OSError: it does not exist.
            ValueError: it is incomplete.
        """
        ends = np.load(folder / ENDS)
        size = int(ends[-1]) if ends.size else 0
        if (folder / CONTENT).stat().st_size != size:
            raise ValueError(f"{CONTENT} does not have the {size} bytes that {ENDS} says")
        # an empty file cannot be mapped
        content = np.memmap(folder / CONTENT, np.uint8, mode="r") if size else np.empty(0, dtype=np.uint8)
        return cls(content, ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, rows: np.ndarray) -> list[str]:
        """The texts of `rows` (m,) int in 0..n−1, in that order."""
        rows = np.asarray(rows, dtype=np.int64)
        ends = self._ends[rows]
        begins = np.where(rows > 0, self._ends[rows - 1], 0) if rows.size else ends
        return [self._content[begin:end].tobytes().decode() for begin, end in zip(begins, ends, strict=True)]


def write_texts(texts: Iterable[str], folder: Path) -> None:
    """Write texts to `folder`, which exists, with at most one of them in memory."""
    ends = [0]
    with (folder / CONTENT).open("wb") as stream:
        for text in texts:
            ends.append(ends[-1] + stream.write(text.encode()))
    np.save(folder / ENDS, np.array(ends[1:], dtype=np.int64))
