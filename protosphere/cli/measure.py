"""`protosphere predict` with labelled inputs: measures a client's model on them."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from protosphere.cli.options import end
from protosphere.cli.tables import print_table
from protosphere.core.text import one_line

if TYPE_CHECKING:
    from protosphere.serving.predict import Answer, Trained

UNREADABLE = 1
MOST_PROBLEMS = 20  # problems that are printed in full
MOST_COLUMNS = 12  # most classes for which the confusion matrix is printed


def measure(
    trained: "Trained", rule: str, judged: "Sequence[tuple[int, Answer]]", as_json: bool, csv: Path | None
) -> None:
    """Print scikit-learn's report and confusion matrix for labelled inputs, and write one row per input to `csv`.

    Exits 1 if some inputs could not be read: they are listed, and excluded from all results.
    """
    if csv is not None:
        write_answers(csv, judged, trained.class_names)
    read = [(label, answer.label) for label, answer in judged if not answer.problem]
    if as_json:
        unknown = {"unknown_categories": sum(bool(answer.unknown) for _, answer in judged)}
        typer.echo(json.dumps(_as_json(read, rule, trained.class_names) | unknown))
    else:
        typer.echo(f"client {trained.partition} of run {trained.run}, {trained.model} by {rule}")
        _show(read, trained.class_names)
    tell_problems([answer for _, answer in judged])


def tell_problems(answers: "Sequence[Answer]") -> None:
    """Print which inputs could not be read, and exit with 1 if there are any."""
    problems = [answer.problem for answer in answers if answer.problem]
    for problem in problems[:MOST_PROBLEMS]:
        typer.echo(problem, err=True)
    if len(problems) > MOST_PROBLEMS:
        typer.echo(f"... and {len(problems) - MOST_PROBLEMS} more could not be read", err=True)
    if problems:
        raise typer.Exit(UNREADABLE)


def tell_unknown(answers: "Sequence[Answer]") -> None:
    """Print how many rows have a category that no training sample had, and in which columns."""
    columns = Counter(name for answer in answers for name in answer.unknown)
    if columns:
        rows = sum(bool(answer.unknown) for answer in answers)
        where = ", ".join(f"{name} ({count})" for name, count in columns.items())
        typer.echo(
            f"warning: {rows} of {len(answers)} rows have a category that no training sample had, which counts as none "
            f"of those that the model knows: {where}",
            err=True,
        )


def write_answers(path: Path, judged: "Sequence[tuple[int | None, Answer]]", names: Sequence[str]) -> None:
    """Write one row per input: its name, its class if known, the prediction and its probability."""
    import pandas as pd

    from protosphere.core.files import replacing
    from protosphere.reports.frames import as_csv

    rows: list[list[object]] = []
    for label, answer in judged:
        predicted = None if answer.problem else names[answer.label]
        rows.append([answer.source, None if label is None else names[label], predicted, answer.confidence])
    table = pd.DataFrame(rows, columns=["input", "label", "prediction", "probability"])
    try:
        with replacing(path) as temporary:
            temporary.write_text(as_csv(table), "utf-8")
    except OSError as error:
        end(f"--csv {path} cannot be written ({error.strerror or error}); name a file of yours.")


def _as_json(read: Sequence[tuple[int, int]], rule: str, names: Sequence[str]) -> dict[str, Any]:
    from sklearn.metrics import classification_report, confusion_matrix

    report: dict[str, Any] = {"classes": {}, "confusion": []}
    if read:
        labels, predicted = zip(*read, strict=True)
        every = range(len(names))
        # by class numbers, because a class may have the name of an average
        about = {"labels": every, "target_names": list(map(str, every)), "output_dict": True, "zero_division": math.nan}
        figures = classification_report(labels, predicted, **about)
        # JSON has no NaN
        for label, name in enumerate(names):
            report["classes"][name] = {
                key: None if math.isnan(value) else value for key, value in figures[str(label)].items()
            }
        report["confusion"] = confusion_matrix(labels, predicted, labels=every).tolist()
    right = sum(label == answer for label, answer in read)
    return {"rule": rule, "rows": len(read), "right": right, "accuracy": right / len(read) if read else None} | report


def _show(read: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
    from sklearn.metrics import classification_report, confusion_matrix

    if not read:
        typer.echo("accuracy: no input could be read")
        return
    labels, predicted = zip(*read, strict=True)
    right = sum(label == answer for label, answer in read)
    typer.echo(f"accuracy: {100 * right / len(read):.1f} % ({right} of {len(read)})")
    present = sorted({*labels, *predicted})
    row_names = [one_line(names[label]) for label in present]
    report = classification_report(labels, predicted, labels=present, target_names=row_names, digits=3, zero_division=0)
    typer.echo(report)
    if len(present) <= MOST_COLUMNS:
        rows = []
        for name, counts in zip(row_names, confusion_matrix(labels, predicted, labels=present).tolist(), strict=True):
            if sum(counts):
                rows.append([name, *(str(count or "") for count in counts)])
        typer.echo("true class, by the class that was answered")
        print_table(["", *row_names], rows)
