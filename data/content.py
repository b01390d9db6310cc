"""What rows contain, as hashes: to tell copies of a row apart from rows that are merely alike."""

import hashlib
from collections.abc import Iterable

import numpy as np


def content_hashes(inputs: np.ndarray | Iterable[str]) -> np.ndarray:
    """BLAKE2b of every row's values, or of its text: (n,) uint64. Equal rows have equal hashes, whatever data set they
    come from; different ones do but with probability 2^-64."""
    if isinstance(inputs, np.ndarray):
        rows: Iterable[bytes] = (row.tobytes() for row in inputs)
    else:
        rows = (text.encode() for text in inputs)
    return np.frombuffer(b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows), dtype=np.uint64)


def occurs_once(inputs: np.ndarray | Iterable[str]) -> np.ndarray:
    """Whether no other row of `inputs` has a row's content: (n,) bool."""
    _, where, counts = np.unique(content_hashes(inputs), return_inverse=True, return_counts=True)
    once: np.ndarray = counts[where] == 1
    return once


def fingerprint(inputs: np.ndarray | Iterable[str], labels: np.ndarray) -> int:
    """One number for rows and labels in their order, to hold two copies of a data set against each other."""
    content = content_hashes(inputs).tobytes() + labels.astype("<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
