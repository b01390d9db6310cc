"""Confusion matrices of a run's last evaluation: as clients send them, as a line stores them, and per class.

Lines and the summary store triples (true class, predicted class, samples) without zero counts. If clients reported only
the correct predictions per class, all wrong ones count as OTHER.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protosphere.wire.confusion import OTHER, Triples

MANY = 200  # from this number of clients on, counts by client are not stored


def confusion_figures(counts: Mapping[int, Triples], rule: str, models: Mapping[int, str]) -> dict[str, Any]:
    """`confusion` of a line: sums by architecture and, for few clients, the counts of each client; empty if no client
    reported any.

    Args:
        counts: partition -> counts. rule: the inference rule. models: partition -> architecture.
    """
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


def _count(triples: Iterable[Sequence[int]]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Numbers of samples by true class, by predicted class, and correctly predicted by class."""
    rows, predictions, right = Counter[int](), Counter[int](), Counter[int]()
    for true, predicted, number in triples:
        if number:
            rows[true] += number
            predictions[predicted] += number
            right[true] += number * (true == predicted)
    return rows, predictions, right


def by_class(triples: Iterable[Sequence[int]]) -> dict[str, dict[str, float | int]]:
    """Class -> accuracy and number of samples, for classes with test samples."""
    rows, _, right = _count(triples)
    return {str(label): {"accuracy": right[label] / rows[label], "rows": rows[label]} for label in sorted(rows)}


def macro(triples: Iterable[Sequence[int]]) -> dict[str, float | None]:
    """Unweighted means over the classes with test samples: `accuracy` (balanced accuracy) and `f1`. They equal
    scikit-learn's balanced_accuracy_score and f1_score(average="macro"), the latter with these classes as its `labels`.

    Both are None without samples; `f1` is also None if clients reported only the correct predictions per class.
    """
    rows, predictions, right = _count(triples)
    if not rows:
        return {"accuracy": None, "f1": None}
    accuracy = math.fsum(right[label] / rows[label] for label in rows) / len(rows)
    if OTHER in predictions:
        return {"accuracy": accuracy, "f1": None}
    scores = [2 * right[label] / (rows[label] + predictions[label]) for label in rows]
    return {"accuracy": accuracy, "f1": math.fsum(scores) / len(scores)}


def per_class(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`classes` of a run's summary: the rule, metrics per class over all clients and by architecture, and `macro`."""
    confusion = _last(lines)
    if not confusion:
        return {}
    all_triples = together(confusion["models"].values())
    return {
        "classes": {
            "rule": confusion["rule"],
            "all": by_class(all_triples),
            "models": {model: by_class(triples) for model, triples in confusion["models"].items()},
            "macro": macro(all_triples),
        }
    }


def _last(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The counts of the last evaluation with a confusion matrix."""
    return next((line["confusion"] for line in reversed(lines) if "confusion" in line), {})
