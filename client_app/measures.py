"""What an evaluation tells beside accuracies, of a client's test samples by the run's own inference rule."""

import math

import torch
from torch import Tensor

from protosphere.wire.confusion import width


def macro_auc(labels: Tensor, probabilities: Tensor) -> float | None:
    """The mean over classes of the area under the ROC curve of each against the rest, as scikit-learn's
    roc_auc_score(multi_class="ovr", average="macro"): of the classes that some of the samples have and some have not;
    None where there is no such class.

    Args:
        labels: (n,). probabilities: (n, K).
    """
    areas = []
    for label in labels.unique().tolist():
        is_of_class = labels == label
        positives = int(is_of_class.sum())
        negatives = len(labels) - positives
        if not negatives:
            continue
        # a sample's rank among all, of equal scores the mean of their ranks
        _, places, counts = probabilities[:, label].unique(return_inverse=True, return_counts=True)
        ranks = (counts.cumsum(0).double() - (counts - 1).double() / 2)[places]
        areas.append(float(ranks[is_of_class].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    return math.fsum(areas) / len(areas) if areas else None


def count_confusion(labels: Tensor, predictions: Tensor, num_classes: int) -> tuple[int, ...]:
    """Counts of (true class, predicted class), row by row; above `MOST_CLASSES` of (true class, right or wrong).

    Args:
        labels, predictions: (n,).
    """
    true, predicted, columns = labels.cpu(), predictions.cpu(), width(num_classes)
    column = predicted if columns == num_classes else (predicted != true).to(true.dtype)
    return tuple(torch.bincount(true * columns + column, minlength=num_classes * columns).tolist())
