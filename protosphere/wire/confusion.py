"""What clients take for what: counts of (true class, predicted class) of their test rows, in the last evaluation alone,
as a MetricRecord of `counts`: (K, K) by rows, or (K, 2) where there are more than MOST_CLASSES."""

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from protosphere.wire.checks import MessageError, are_counts, check_keys

MOST_CLASSES = 100  # above it a client tells (right, wrong) of each class alone
RECORD = "confusion"
Counts = NDArray[np.int64]


def width(num_classes: int) -> int:
    """Columns of the counts of so many classes."""
    return num_classes if num_classes <= MOST_CLASSES else 2


def encode_counts(counts: tuple[int, ...]) -> MetricRecord:
    """Client to server."""
    return MetricRecord({"counts": list(counts)})


def decode_counts(record: MetricRecord, num_classes: int, rows: int, right: int) -> Counts:
    """Server side of `encode_counts`: (K, K), or (K, 2).

    Args:
        rows, right: what the evaluation beside it says of the same rows by the same rule.

    Raises:
        MessageError: of another size, no counts, or at odds with the evaluation.
    """
    check_keys(RECORD, record, {"counts"})
    values, columns = record["counts"], width(num_classes)
    if not isinstance(values, list) or len(values) != num_classes * columns or not are_counts(values):
        raise MessageError(f"the confusion is not {num_classes} times {columns} counts")
    # in Python's integers, which no sum overflows
    if sum(values) != rows:
        raise MessageError(f"the confusion is of {sum(values)} rows, and the evaluation of {rows}")
    counts = np.array(values, dtype=np.int64).reshape(num_classes, columns)
    correct = int(np.trace(counts) if columns == num_classes else counts[:, 0].sum())
    if correct != right:
        raise MessageError(f"the confusion has {correct} rows right, and the evaluation {right}")
    return counts
