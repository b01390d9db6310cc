"""What rows contain, as hashes: to tell copies of a row apart from rows that are merely alike."""

import hashlib
from typing import Any

import numpy as np

_ROWS_AT_ONCE = 4096


def content_hashes(inputs: Any, rows: np.ndarray) -> np.ndarray:
    """BLAKE2b of each row's values, or of its text: (n,) uint64, for `rows` (n,) of `inputs` (an array, or texts that
    an array of rows makes a list of). Rows of equal values have equal hashes, whatever file they come from; different
    ones do with probability 2^-64. The same picture in grey and in colour, or on another scale, is another content."""
    digests = [
        hashlib.blake2b(_content(row), digest_size=8).digest()
        for start in range(0, len(rows), _ROWS_AT_ONCE)
        for row in inputs[rows[start : start + _ROWS_AT_ONCE]]
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _content(row: Any) -> bytes:
    if isinstance(row, str):
        return row.encode()
    # -0.0 equals 0.0
    content: bytes = (row + 0.0 if row.dtype.kind == "f" else row).tobytes()
    return content


def occurs_once(inputs: Any, rows: np.ndarray) -> np.ndarray:
    """Whether no other of `rows` has the content of a row: (n,) bool."""
    _, where, counts = np.unique(content_hashes(inputs, rows), return_inverse=True, return_counts=True)
    once: np.ndarray = counts[where] == 1
    return once
