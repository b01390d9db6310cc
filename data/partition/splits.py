"""The split of one client's units into training, test and validation: stratified, or by each sample's own content."""

import hashlib
import hmac
import math
from itertools import pairwise
from typing import Any

import numpy as np

from protosphere.data.partition.units import Pool

_BLOCK = 4096  # rows


def stratified_split(
    labels: np.ndarray, test_share: float, validation_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split a client's rows into train, test and validation, stratified by class.

    The test part has round(share · m) rows, divided among the classes by largest remainder; then the validation part
    likewise. Each class keeps at least one training row; test takes precedence over validation for the last free row of
    a class.

    Args:
        labels: (m,) int.
        test_share, validation_share: each at least 0, together below 1.

    Returns:
        Three sorted int64 arrays of positions in `labels`: a disjoint cover of 0..m−1.
    """
    labels = np.asarray(labels)
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    tests = math.floor(labels.size * test_share + 0.5)
    test = largest_remainder(counts * test_share, tests, counts - 1, counts)
    validations = math.floor(labels.size * validation_share + 0.5)
    validation = largest_remainder(counts * validation_share, validations, counts - 1 - test, counts)
    order = np.lexsort((np.random.default_rng(seed).random(labels.size), codes))
    codes = codes[order]
    rank = np.arange(labels.size) - (np.cumsum(counts) - counts)[codes]
    in_test = rank < test[codes]
    in_validation = ~in_test & (rank < (test + validation)[codes])
    return np.sort(order[~in_test & ~in_validation]), np.sort(order[in_test]), np.sort(order[in_validation])


def largest_remainder(quotas: np.ndarray, total: int, room: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Whole numbers (k,) near `quotas` that sum to `total` if `room` allows it (Hamilton's apportionment).

    Each gets the whole part of its quota; the rest goes, one each, to the largest remainders that have room,
    repeatedly. Of equal remainders, the larger entry of `ties` comes first, then the lower index.
    """
    seats = np.minimum(np.floor(quotas + 1e-9).astype(np.int64), room)
    remainders = np.round(quotas - seats, 9)
    ranking = np.lexsort((np.arange(quotas.size), -ties, -remainders))
    while (missing := total - int(seats.sum())) > 0:
        ranking = ranking[seats[ranking] < room[ranking]]
        if not ranking.size:
            break
        seats[ranking[:missing]] += 1
    return seats


def secret_split(
    pool: Pool, secret: str, test_share: float, validation_share: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train, test and validation units: a unit's side is HMAC-SHA256(secret, content of its rows) / 2^256.

    No row affects another. Shares hold only on average, and copies are on one side.

    Args:
        secret: in hexadecimal digits.

    Returns:
        Three sorted arrays of units.
    """
    key, hashes = bytes.fromhex(secret), content_hashes(pool.samples.inputs, pool.rows)
    owners = np.arange(len(pool.rows)) if pool.unit_of_row is None else pool.unit_of_row
    # sorted by unit, then by content, so that the order of rows reveals nothing
    order = np.lexsort((hashes, owners))
    bounds = np.searchsorted(owners[order], np.arange(len(pool) + 1))
    sides = np.zeros(len(pool), dtype=np.int64)
    for unit, (start, end) in enumerate(pairwise(bounds)):
        digest = hmac.digest(key, hashes[order[start:end]].tobytes(), "sha256")
        share = int.from_bytes(digest, "big") / 2**256
        sides[unit] = 1 if share < test_share else 2 if share < test_share + validation_share else 0
    return np.flatnonzero(sides == 0), np.flatnonzero(sides == 1), np.flatnonzero(sides == 2)


def content_hashes(inputs: Any, rows: np.ndarray) -> np.ndarray:
    """BLAKE2b of the values, or of the text, of each of `rows` (n,) of `inputs`, an array or Texts: (n,) uint64.

    Equal rows have equal hashes, different ones do with probability 2^-64.
    """
    digests = []
    for start in range(0, len(rows), _BLOCK):
        for row in inputs[rows[start : start + _BLOCK]]:
            if not isinstance(row, str):
                # -0.0 equals 0.0
                row = row + 0.0 if row.dtype.kind == "f" else row
            content = row.encode() if isinstance(row, str) else row.tobytes()
            digests.append(hashlib.blake2b(content, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")


def occurs_once(inputs: Any, rows: np.ndarray) -> np.ndarray:
    """Whether no other of `rows` has the content of a row: (n,) bool."""
    _, where, counts = np.unique(content_hashes(inputs, rows), return_inverse=True, return_counts=True)
    once: np.ndarray = counts[where] == 1
    return once
