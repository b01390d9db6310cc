"""A client's area under the ROC curve on its own test samples, as a MetricRecord of `auc`: between 0 and 1."""

import math

from flwr.app import MetricRecord

from protosphere.wire.checks import MessageError, check_keys

RECORD = "roc_auc"


def encode_auc(auc: float) -> MetricRecord:
    """Client to server."""
    return MetricRecord({"auc": auc})


def decode_auc(record: MetricRecord) -> float:
    """Server side of `encode_auc`.

    Raises:
        MessageError: it is none.
    """
    check_keys(RECORD, record, {"auc"})
    value = record["auc"]
    if not isinstance(value, float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise MessageError(f"the area under the ROC curve is {value!r}, and not between 0 and 1")
    return value
