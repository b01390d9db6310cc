"""Metrics besides accuracy, for a client's test samples and the run's own inference rule."""

import math

import torch
from torch import Tensor

from protosphere.record.confusion import width


def macro_auc(labels: Tensor, probabilities: Tensor) -> float | None:
    """The one-versus-rest area under the ROC curve, averaged over the classes of some but not all samples; None if
    there is no such class or a probability is not finite.

    Args:
        labels: (n,). probabilities: (n, K). Both on the CPU.
    """
    # takes seconds to import, so only runs that need it import it
    from sklearn.metrics import roc_auc_score

    if not bool(probabilities.isfinite().all()):
        return None
    areas = []
    for label in labels.unique().tolist():
        is_of_class = labels == label
        if not is_of_class.all():
            areas.append(float(roc_auc_score(is_of_class.numpy(), probabilities[:, label].numpy())))
    return math.fsum(areas) / len(areas) if areas else None


def count_confusion(labels: Tensor, predictions: Tensor, num_classes: int) -> tuple[int, ...]:
    """Counts of (true class, predicted class), row by row; with more than `MOST_CLASSES` classes, of (true class, right
    or wrong).

    Args:
        labels, predictions: (n,).
    """
    true, predicted, columns = labels.cpu(), predictions.cpu(), width(num_classes)
    column = predicted if columns == num_classes else (predicted != true).to(true.dtype)
    return tuple(torch.bincount(true * columns + column, minlength=num_classes * columns).tolist())
