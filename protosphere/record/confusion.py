"""What clients take for what in a run's last evaluation: the counts as they come, as a line has them, and per class.

In a line and in the summary counts are triples (true class, predicted class, rows), those of no row left out. Where
clients told of each class alone how many are right, what is wrong was predicted as OTHER.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OTHER = -1
MANY = 200  # clients from which no one's own counts are kept
Counts = NDArray[np.int64]
Triples = list[list[int]]


class Confusions:
    """Takes the counts of clients as they come: sums by architecture, and where there are few clients each one's.

    Integers: the order changes no sum.

    Args:
        rule: by which. models: partition -> architecture.
    """

    def __init__(self, rule: str, models: Mapping[int, str]):
        self.rule = rule
        self._models = dict(models)
        self._sums: dict[str, Counts] = {}
        self._clients: dict[int, Counts] = {}

    def add(self, partition: int, counts: Counts) -> None:
        """Of one client, (K, K) or (K, 2)."""
        model = self._models[partition]
        self._sums[model] = self._sums[model] + counts if model in self._sums else counts
        if len(self._models) < MANY:
            self._clients[partition] = counts

    def as_json(self) -> dict[str, Any]:
        """`confusion` of a line; nothing where no client told."""
        if not self._sums:
            return {}
        models = {model: _triples(counts) for model, counts in sorted(self._sums.items())}
        clients = {str(partition): _triples(counts) for partition, counts in sorted(self._clients.items())}
        return {"confusion": {"rule": self.rule, "models": models, **({"clients": clients} if clients else {})}}


def _triples(counts: Counts) -> Triples:
    square = counts.shape[0] == counts.shape[1]
    entries = (
        (true, column, int(counts[true, column]))
        for true, column in zip(*map(np.ndarray.tolist, np.nonzero(counts)), strict=True)
    )
    return [[true, column if square else (OTHER if column else true), rows] for true, column, rows in entries]


def together(models: Iterable[Sequence[Sequence[int]]]) -> Triples:
    """Over all architectures."""
    sums: dict[tuple[int, int], int] = {}
    for triples in models:
        for true, predicted, rows in triples:
            sums[true, predicted] = sums.get((true, predicted), 0) + rows
    return [[*pair, rows] for pair, rows in sorted(sums.items())]


def by_class(triples: Iterable[Sequence[int]]) -> dict[str, dict[str, float | int]]:
    """Class -> accuracy and rows, of the classes that have test rows."""
    rows: dict[int, int] = {}
    right: dict[int, int] = {}
    for true, predicted, number in triples:
        rows[true] = rows.get(true, 0) + number
        right[true] = right.get(true, 0) + number * (true == predicted)
    return {str(label): {"accuracy": right[label] / rows[label], "rows": rows[label]} for label in sorted(rows)}


def macro(triples: Iterable[Sequence[int]]) -> dict[str, float | None]:
    """Every class alike, however many rows it has: `accuracy`, the mean of the classes' own accuracies (balanced
    accuracy), of the classes that have rows; `f1`, the mean of their F1, of those that have rows or were predicted. As
    scikit-learn's balanced_accuracy_score and f1_score(average="macro") have them.

    None where there are no rows; `f1` also where clients told of each class alone how many are right.
    """
    rows: dict[int, int] = {}
    predicted_rows: dict[int, int] = {}
    right: dict[int, int] = {}
    for true, predicted, number in triples:
        if number:
            rows[true] = rows.get(true, 0) + number
            predicted_rows[predicted] = predicted_rows.get(predicted, 0) + number
            if true == predicted:
                right[true] = right.get(true, 0) + number
    if not rows:
        return {"accuracy": None, "f1": None}
    accuracy = math.fsum(right.get(label, 0) / count for label, count in rows.items()) / len(rows)
    if OTHER in predicted_rows:
        return {"accuracy": accuracy, "f1": None}
    labels = rows.keys() | predicted_rows.keys()
    scores = [2 * right.get(k, 0) / (rows.get(k, 0) + predicted_rows.get(k, 0)) for k in sorted(labels)]
    return {"accuracy": accuracy, "f1": math.fsum(scores) / len(scores)}


def macro_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """`macro` over all clients, of a run's lines; nothing where no client told."""
    confusion = next((line["confusion"] for line in reversed(lines) if "confusion" in line), None)
    return {} if confusion is None else macro(together(confusion["models"].values()))


def per_class(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`classes` of a run's summary: by which rule, per class over all clients, and by architecture; and `macro`."""
    confusion = next((line["confusion"] for line in reversed(lines) if "confusion" in line), None)
    if confusion is None:
        return {}
    models = {model: by_class(triples) for model, triples in confusion["models"].items()}
    return {
        "classes": {
            "rule": confusion["rule"],
            "all": by_class(together(confusion["models"].values())),
            "models": models,
            "macro": macro(together(confusion["models"].values())),
        }
    }
