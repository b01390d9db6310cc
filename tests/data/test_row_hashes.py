"""Hashes of rows against hashlib and loops: what is a copy, and what tells two test sets apart."""

import hashlib
import struct
from collections import Counter

import numpy as np
import pytest

from protosphere.data.partition.row_hashes import content_hashes, fingerprint, occurs_once


class Lines(list):
    """Texts that an array of rows makes a list of."""

    def __getitem__(self, rows):
        return [list.__getitem__(self, int(row)) for row in rows]


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 1, 2, 3), dtype=np.uint8)


def digest(content):
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


TEXTS = Lines(["a note", "", "ein Satz über \u00e4", "a note", "A note"])


def test_a_rows_hash_is_blake2b_of_its_bytes():
    inputs = images(9)
    rows = np.array([4, 0, 8, 4])
    assert content_hashes(inputs, rows).tolist() == [digest(inputs[row].tobytes()) for row in rows]
    floats = np.array([[0.5, -1.0], [2.0, 0.25]], dtype=np.float32)
    expected = [digest(struct.pack("<2f", *row)) for row in floats.tolist()]
    assert content_hashes(floats, np.arange(2)).tolist() == expected
    assert content_hashes(TEXTS, np.array([2, 1])).tolist() == [digest(TEXTS[[i]][0].encode()) for i in (2, 1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_equal_values_have_equal_hashes(dtype):
    """-0.0 equals 0.0, and no other two numbers are equal that differ in their bits."""
    inputs = np.array([[0.0, 1.5], [-0.0, 1.5], [0.0, -1.5], [5e-324 if dtype is np.float64 else 1e-45, 1.5]], dtype)
    assert inputs[0].tobytes() != inputs[1].tobytes()
    zero, minus, other, tiny = content_hashes(inputs, np.arange(4)).tolist()
    assert zero == minus == digest(struct.pack("<2f" if dtype is np.float32 else "<2d", 0.0, 1.5))
    assert len({zero, other, tiny}) == 3
    assert occurs_once(inputs, np.arange(4)).tolist() == [False, False, True, True]
    labels, rows = np.zeros(4, dtype=np.int64), np.array([0, 2])
    assert fingerprint(inputs, labels, rows) == fingerprint(inputs, labels, np.array([1, 2]))
    assert np.signbit(inputs[1, 0]), "the caller's array is as it was"


def test_more_rows_than_are_read_at_once_come_in_order():
    inputs = np.arange(10_000, dtype=np.int32).reshape(-1, 1)
    rows = np.random.default_rng(1).permutation(10_000)
    assert content_hashes(inputs, rows).tolist() == [digest(struct.pack("<i", row)) for row in rows.tolist()]


@pytest.mark.parametrize("inputs", [np.array([3, 1, 3, 2, 2, 2, 7], dtype=np.uint8).reshape(-1, 1), TEXTS])
def test_occurs_once_is_a_count(inputs):
    # a site may have no training row at all
    assert content_hashes(images(3), np.empty(0, dtype=np.int64)).shape == (0,)
    for rows in (np.arange(len(inputs)), np.arange(len(inputs))[::-1], np.arange(1, 4), np.array([0]), np.arange(0)):
        contents = [bytes(x) if isinstance(x, np.ndarray) else x for x in inputs[rows]]
        counts = Counter(contents)
        assert occurs_once(inputs, rows).tolist() == [counts[content] == 1 for content in contents]


def test_a_fingerprint_is_of_the_rows_their_order_and_their_labels_alone():
    """Not of the table that they lie in, nor of how its numbers are stored."""
    inputs, labels, rows = images(6), np.arange(6) % 3, np.arange(6)
    relabelled, repainted, swapped = labels.copy(), inputs.copy(), labels.copy()
    relabelled[4] = 2
    repainted[5, 0, 1, 2] ^= 1
    swapped[[0, 1]] = labels[[1, 0]]
    found = [
        fingerprint(inputs, labels, rows),
        fingerprint(inputs, labels, rows[::-1]),
        fingerprint(inputs, labels, rows[:-1]),
        fingerprint(inputs, relabelled, rows),
        fingerprint(inputs, swapped, rows),
        fingerprint(repainted, labels, rows),
    ]
    assert len(set(found)) == len(found)
    assert all(0 <= each < 2**64 for each in found)
    some = np.array([1, 2, 5])
    assert fingerprint(inputs[some], labels[some].astype(np.int32), np.arange(3)) == fingerprint(inputs, labels, some)
