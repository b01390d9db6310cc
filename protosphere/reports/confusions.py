"""The pictures and tables of confusion: what samples were assigned to in the last evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from protosphere.core.settings import plain_name
from protosphere.core.text import cut_apart
from protosphere.record.confusion import OTHER, by_class, macro, together
from protosphere.reports import canvas, page
from protosphere.reports.page import Html
from protosphere.reports.pictures import Picture
from protosphere.reports.results import Results

if TYPE_CHECKING:
    from matplotlib.image import AxesImage

MOST_MATRICES = 8  # architectures that have one of their own
MOST_NUMBERED = 20  # classes up to which a cell tells its number
ALL = "all clients"

Counts = npt.NDArray[np.int64]  # true class, predicted class


def _triples(results: Results) -> tuple[str, list[tuple[str, Sequence[Sequence[int]]]]]:
    """The rule, and the counts of all and of each architecture, whose names are cut; of no use are labels that no class
    has."""
    last: Mapping[str, Any] = next((line["confusion"] for line in reversed(results.lines) if "confusion" in line), {})
    models = dict(sorted(last.get("models", {}).items()))
    names = cut_apart([name or "?" for name in models], 28)
    several = list(zip(names, models.values(), strict=True)) if len(models) > 1 else []
    return last.get("rule", ""), [(ALL, together(models.values())), *several] if models else []


def confusion_matrices(results: Results, whose: str = "") -> list[tuple[str, Picture]]:
    """Of all clients, then of each architecture: its name, and its picture. Nothing where nobody told.

    Args:
        whose: of these alone; "" for each.
    """
    rule, triples_by_name = _triples(results)
    squares = [
        (name, triples) for name, triples in triples_by_name if all(predicted != OTHER for _, predicted, _ in triples)
    ]
    squares = squares[: MOST_MATRICES + 1]
    files = _files([name for name, _ in squares])
    chosen = [(*square, file) for square, file in zip(squares, files, strict=True) if whose in ("", square[0])]
    if not chosen:
        return []
    names = cut_apart(results.class_names, 14)
    K = len(names)
    # one drawing, laid out once, whose cells alone change
    with canvas.figure((canvas.HALF[0], 4.9)) as drawn:
        axes = drawn.add_subplot()
        image = canvas.square(axes, np.zeros((K, K)), names, "share of the true class (%)", 100)
        axes.set(xlabel="predicted class", ylabel="true class")
        pictures = []
        for name, triples, file in chosen:
            counts = np.zeros((K, K), dtype=np.int64)
            for true, predicted, rows in triples:
                counts[true, predicted] = rows
            fill(image, counts)
            pictures.append((name, _picture(results, rule, name, counts, canvas.svg(drawn), file)))
        return pictures


def _files(names: Sequence[str]) -> list[str]:
    """Each matrix's file, by whose it is; no two alike, on disks without capitals either."""
    files: list[str] = []
    for name in names:
        file = f"confusion-{plain_name(name.casefold(), 60) or 'unnamed'}"
        files.append(f"{file}-{len(files)}" if file in files else file)
    return files


def fill(image: "AxesImage", counts: Counts) -> None:
    """The cells of a matrix, in place of the one before."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(100 * counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    image.set_data(np.ma.masked_equal(shares, 0))
    for old in list(image.axes.texts):
        old.remove()
    K = len(counts)
    if K <= MOST_NUMBERED:
        texts = {(row, column): f"{counts[row, column]}" for row, column in np.argwhere(counts)}
        canvas.number_cells(image.axes, texts, shares / 100, 8 if K <= 12 else 6.5)


def _picture(results: Results, rule: str, whose: str, counts: Counts, svg: str, file: str) -> Picture:
    wrong = sorted(
        ((counts[true, other], true, other) for true, other in np.argwhere(counts) if true != other), reverse=True
    )[:3]
    mistakes = [
        f"“{results.class_names[true]}” for “{results.class_names[other]}” ({rows})" for rows, true, other in wrong
    ]
    most = f"Confused most often: {', '.join(mistakes)}." if mistakes else "No sample was assigned to a wrong class."
    caption = (
        f"Test samples of {whose} in the last evaluation, by {rule}: number of samples by true class (rows) and "
        f"predicted class (columns). {most}"
    )
    right = int(np.trace(counts))
    alt = f"Confusion of {whose}: {right} of {counts.sum()} test samples right. {most}"
    table: list[list[object]] = [[name, *row] for name, row in zip(results.class_names, counts.tolist(), strict=True)]
    numbers: list[list[object]] = [["true class", *results.class_names], *table]
    return Picture(file, svg, alt, caption, numbers=numbers, title=f"Confusion of {whose}")


def _macro_table(rule: str, triples_by_name: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> Html:
    """Macro accuracy and F1 of all clients' test samples together, and of each architecture's."""
    rows = []
    for name, triples in triples_by_name:
        figures = macro(triples)
        shares = [None if value is None else f"{100 * value:.1f}" for value in figures.values()]
        rows.append([name, sum(number for *_, number in triples), *shares])
    head = ["clients", "samples", page.term("macro accuracy"), page.term("macro F1")]
    return page.table(head, rows, f"Mean over classes in %, by {rule}, in the last evaluation")


def class_table(results: Results) -> Iterator[Html]:
    """Accuracy by class, over all clients and by architecture; before it the figures that take every class alike."""
    rule, triples_by_name = _triples(results)
    if not triples_by_name:
        return
    figures = [by_class(triples) for _, triples in triples_by_name]
    rows = [
        [
            name,
            figures[0].get(str(label), {}).get("rows", 0),
            *(
                None if str(label) not in by_label else f"{100 * by_label[str(label)]['accuracy']:.1f}"
                for by_label in figures
            ),
        ]
        for label, name in enumerate(cut_apart(results.class_names, 40))
    ]
    yield _macro_table(rule, triples_by_name)
    caption = f"Test accuracy in % by class, by {rule}, in the last evaluation"
    table = page.table(["class", "samples", *(name for name, _ in triples_by_name)], rows, caption)
    yield page.details(f"accuracy of the {len(rows)} classes", table) if len(rows) > canvas.MOST_NAMED else table
