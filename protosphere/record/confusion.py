"""What clients take for what in a run's last evaluation: the counts as they come, as a line has them, and per class.

In a line and in the summary counts are triples (true class, predicted class, rows), those of no row left out. Where
clients told of each class alone how many are right, what is wrong was predicted as OTHER.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protosphere.wire.confusion import OTHER, Triples

MANY = 200  # clients from which no one's own counts are kept


def confusion_figures(counts: Mapping[int, Triples], rule: str, models: Mapping[int, str]) -> dict[str, Any]:
    """`confusion` of a line: the sums by architecture, and where there are few clients each one's counts; nothing where
    no client told.

    Args:
        counts: by partition. rule: by which the clients predicted. models: partition -> architecture.
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
    """Over all architectures."""
    sums: Counter[tuple[int, int]] = Counter()
    for triples in models:
        for true, predicted, rows in triples:
            sums[true, predicted] += rows
    return [[*pair, rows] for pair, rows in sorted(sums.items())]


def _count(triples: Iterable[Sequence[int]]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Rows by their true class, by their predicted class, and those predicted right by class."""
    rows, predictions, right = Counter[int](), Counter[int](), Counter[int]()
    for true, predicted, number in triples:
        if number:
            rows[true] += number
            predictions[predicted] += number
            right[true] += number * (true == predicted)
    return rows, predictions, right


def by_class(triples: Iterable[Sequence[int]]) -> dict[str, dict[str, float | int]]:
    """Class -> accuracy and rows, of the classes that have test rows."""
    rows, _, right = _count(triples)
    return {str(label): {"accuracy": right[label] / rows[label], "rows": rows[label]} for label in sorted(rows)}


def macro(triples: Iterable[Sequence[int]]) -> dict[str, float | None]:
    """Every class that has test rows alike, however many: `accuracy`, the mean of the classes' own accuracies (balanced
    accuracy), and `f1`, the mean of their F1. As scikit-learn's balanced_accuracy_score and f1_score(average="macro")
    have them, the latter with these classes as its `labels`.

    None where there are no rows; `f1` also where clients told of each class alone how many are right.
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
    """`classes` of a run's summary: by which rule, per class over all clients, and by architecture; and `macro`."""
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
    """The counts of the last evaluation that has any."""
    return next((line["confusion"] for line in reversed(lines) if "confusion" in line), {})
