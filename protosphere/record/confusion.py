"""Confusion matrices of a run's last evaluation.

A client reports counts of (true class, predicted class), (K, K) row by row, or (K, 2) of (right, wrong) for more than
MOST_CLASSES classes. Lines and the summary store triples (true class, predicted class, samples) without zero counts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protosphere.wire.checks import MessageError

MOST_CLASSES = 100  # with more classes, a client reports only (right, wrong) per class
OTHER = -1  # stands for every wrong class if only (right, wrong) is reported
MANY = 200  # from this number of clients on, counts by client are not stored
Triples = list[list[int]]


def width(num_classes: int) -> int:
    """The number of columns of the counts for this number of classes."""
    return num_classes if num_classes <= MOST_CLASSES else 2


def confusion_triples(counts: tuple[int, ...], num_classes: int, samples: int, right: int) -> Triples:
    """Check the counts of an evaluation and return them as triples.

    Raises MessageError if they contradict the evaluation's own numbers of samples, and of those that are `right`.
    """
    columns = width(num_classes)
    if len(counts) != num_classes * columns:
        raise MessageError(f"the confusion is not {num_classes} times {columns} counts")
    if sum(counts) != samples:
        raise MessageError(f"the confusion is of {sum(counts)} samples, and the evaluation of {samples}")

    triples = []
    for place, count in enumerate(counts):
        true, predicted = divmod(place, columns)
        if columns != num_classes:
            predicted = OTHER if predicted else true
        if count:
            triples.append([true, predicted, count])
    correct = sum(count for true, predicted, count in triples if true == predicted)
    if correct != right:
        raise MessageError(f"the confusion has {correct} samples right, and the evaluation {right}")
    return triples


def confusion_figures(counts: Mapping[int, Triples], rule: str, models: Mapping[int, str]) -> dict[str, Any]:
    """`confusion` of a line: sums by architecture and, for few clients, the counts of each client; empty if no client
    reported any. Counts and models (architectures) are by partition."""
    if not counts:
        return {}
    by_model: dict[str, list[Triples]] = {}
    for partition, triples in sorted(counts.items()):
        by_model.setdefault(models[partition], []).append(triples)
    confusion: dict[str, Any] = {
        "rule": rule,
        "models": {model: together(by_model[model]) for model in sorted(by_model)},
    }
    if len(models) < MANY:
        confusion["clients"] = {str(partition): triples for partition, triples in sorted(counts.items())}
    return {"confusion": confusion}


def together(models: Iterable[Sequence[Sequence[int]]]) -> Triples:
    """The sum over all architectures."""
    sums: Counter[tuple[int, int]] = Counter()
    for triples in models:
        for true, predicted, rows in triples:
            sums[true, predicted] += rows
    return [[*pair, rows] for pair, rows in sorted(sums.items())]


def by_class(triples: Iterable[Sequence[int]]) -> dict[str, dict[str, float | int]]:
    """Class -> accuracy and number of samples, for classes with test samples."""
    rows, right = Counter[int](), Counter[int]()
    for true, predicted, number in triples:
        if number:
            rows[true] += number
            right[true] += number * (true == predicted)
    return {str(label): {"accuracy": right[label] / rows[label], "rows": rows[label]} for label in sorted(rows)}


def macro(triples: Sequence[Sequence[int]]) -> dict[str, float | None]:
    """Unweighted means over the classes with test samples: `accuracy` (balanced accuracy) and `f1`, as scikit-learn's
    with these classes as its `labels`. Both are None without samples, and `f1` if only (right, wrong) was reported."""
    classes = by_class(triples)
    if not classes:
        return {"accuracy": None, "f1": None}
    accuracy = math.fsum(figures["accuracy"] for figures in classes.values()) / len(classes)
    predictions = Counter[int]()
    for _, predicted, number in triples:
        predictions[predicted] += number
    if predictions[OTHER]:
        return {"accuracy": accuracy, "f1": None}
    scores = []
    for label, figures in classes.items():
        right = round(figures["accuracy"] * figures["rows"])
        scores.append(2 * right / (figures["rows"] + predictions[int(label)]))
    return {"accuracy": accuracy, "f1": math.fsum(scores) / len(scores)}


def per_class(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`classes` of a run's summary: the rule, metrics per class over all clients and by architecture, and `macro`."""
    for line in reversed(lines):
        if "confusion" not in line:
            continue
        models = line["confusion"]["models"]
        all_triples = together(models.values())
        classes = {
            "rule": line["confusion"]["rule"],
            "all": by_class(all_triples),
            "models": {model: by_class(triples) for model, triples in models.items()},
            "macro": macro(all_triples),
        }
        return {"classes": classes}
    return {}
