"""Counts of what is taken for what, as they cross."""

import numpy as np
import pytest

from protosphere.wire.checks import MessageError
from protosphere.wire.confusion import decode_counts, encode_counts, width

GOOD = (3, 1, 0, 0, 2, 0, 1, 0, 5)


def test_counts_come_back_in_rows_of_true_classes():
    found = decode_counts(encode_counts(GOOD), 3, rows=12, right=10)
    np.testing.assert_array_equal(found, [[3, 1, 0], [0, 2, 0], [1, 0, 5]])


def test_of_many_classes_there_are_two_columns():
    assert (width(100), width(101)) == (100, 2)
    counts = tuple(index % 3 for index in range(2 * 101))
    found = decode_counts(encode_counts(counts), 101, rows=sum(counts), right=sum(counts[::2]))
    assert found.tolist() == [list(counts[index : index + 2]) for index in range(0, 202, 2)]


@pytest.mark.parametrize(
    ("values", "rows", "right", "words"),
    [
        (GOOD[:-1], 7, 5, "3 times 3"),
        ((*GOOD, 0), 12, 10, "3 times 3"),
        ((), 0, 0, "3 times 3"),
        ((-1, *GOOD[1:]), 8, 6, "counts"),
        ((3.0, 1.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 5.0), 12, 10, "counts"),
        (GOOD, 13, 10, "of 12 rows"),
        (GOOD, 12, 9, "10 rows right"),
        ((2**62, 2**62, 2**62, 2**62, 12, 0, 0, 0, 0), 12, 10, "rows"),
    ],
)
def test_what_cannot_be_is_refused(values, rows, right, words):
    with pytest.raises(MessageError, match=words):
        decode_counts(encode_counts(values), 3, rows, right)
