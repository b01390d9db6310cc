"""A client's confusion matrix on its test samples, as an evaluation reports it: counts of (true class, predicted
class), (K, K) row by row, or (K, 2) of (right, wrong) for more than MOST_CLASSES classes."""

from protosphere.wire.checks import MessageError

MOST_CLASSES = 100  # with more classes, a client reports only (right, wrong) per class
OTHER = -1  # stands for every wrong class if only (right, wrong) is reported
Triples = list[list[int]]  # (true class, predicted class, samples), without zero counts


def width(num_classes: int) -> int:
    """The number of columns of the counts for this number of classes."""
    return num_classes if num_classes <= MOST_CLASSES else 2


def confusion_triples(counts: tuple[int, ...], num_classes: int, samples: int, right: int) -> Triples:
    """Check the counts of an evaluation and return them as triples.

    Args:
        samples, right: the evaluation's own numbers for the same samples and rule.

    Raises:
        MessageError: the counts do not fit the number of classes, or contradict the evaluation.
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
