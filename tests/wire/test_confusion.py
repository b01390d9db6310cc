"""Counts of what is taken for what, as the server takes them."""

import pytest

from protosphere.wire.checks import MessageError
from protosphere.wire.confusion import OTHER, confusion_triples, width

GOOD = (3, 1, 0, 0, 2, 0, 1, 0, 5)


def test_counts_become_triples_of_true_and_predicted_class():
    found = confusion_triples(GOOD, 3, samples=12, right=10)
    assert found == [[0, 0, 3], [0, 1, 1], [1, 1, 2], [2, 0, 1], [2, 2, 5]]


def test_of_many_classes_there_are_two_columns():
    assert (width(100), width(101)) == (100, 2)
    counts = tuple(index % 3 for index in range(2 * 101))
    found = confusion_triples(counts, 101, samples=sum(counts), right=sum(counts[::2]))
    expected = []
    for label in range(101):
        right, wrong = counts[2 * label : 2 * label + 2]
        expected += [[label, label, right]] * bool(right) + [[label, OTHER, wrong]] * bool(wrong)
    assert found == expected


@pytest.mark.parametrize(
    ("values", "samples", "right", "words"),
    [
        (GOOD[:-1], 7, 5, "3 times 3"),
        ((*GOOD, 0), 12, 10, "3 times 3"),
        ((), 0, 0, "3 times 3"),
        (GOOD, 13, 10, "of 12 samples"),
        (GOOD, 12, 9, "10 samples right"),
        ((2**62, 2**62, 2**62, 2**62, 12, 0, 0, 0, 0), 12, 10, "samples"),
    ],
)
def test_what_cannot_be_is_refused(values, samples, right, words):
    with pytest.raises(MessageError, match=words):
        confusion_triples(values, 3, samples, right)
