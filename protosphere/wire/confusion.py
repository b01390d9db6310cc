"""A client's confusion matrix on its test samples, as an evaluation carries it: counts of (true class, predicted
class), (K, K) row by row, or (K, 2) of (right, wrong) where there are more than MOST_CLASSES classes."""

from protosphere.wire.checks import MessageError

MOST_CLASSES = 100  # above it a client tells (right, wrong) of each class alone
OTHER = -1  # predicted in place of the true class, where no more is told
Triples = list[list[int]]  # (true class, predicted class, samples), those of no sample left out


def width(num_classes: int) -> int:
    """Columns of the counts of so many classes."""
    return num_classes if num_classes <= MOST_CLASSES else 2


def confusion_triples(counts: tuple[int, ...], num_classes: int, samples: int, right: int) -> Triples:
    """The counts of an evaluation, checked.

    Args:
        samples, right: what the evaluation says of the same samples by the same rule.

    Raises:
        MessageError: the counts are not those of so many classes, or are at odds with the evaluation.
    """
    columns = width(num_classes)
    if len(counts) != num_classes * columns:
        raise MessageError(f"the confusion is not {num_classes} times {columns} counts")
    if sum(counts) != samples:
        raise MessageError(f"the confusion is of {sum(counts)} samples, and the evaluation of {samples}")

    triples = []
    correct = 0
    for place, count in enumerate(counts):
        if not count:
            continue
        true, predicted = divmod(place, columns)
        if columns != num_classes:
            predicted = OTHER if predicted else true
        if predicted == true:
            correct += count
        triples.append([true, predicted, count])
    if correct != right:
        raise MessageError(f"the confusion has {correct} samples right, and the evaluation {right}")
    return triples
