"""`protosphere predict` of inputs whose classes are known: how a client fares on them."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from protosphere.cli.options import end
from protosphere.cli.tables import console

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protosphere.serving.predict import Answer, Trained

UNREADABLE = 1
MOST_PROBLEMS = 20  # that are told in a sentence each
MOST_COLUMNS = 12  # classes up to which what was taken for what is a table


def measure(
    trained: "Trained", rule: str, judged: "Sequence[tuple[int, Answer]]", as_json: bool, csv: Path | None
) -> None:
    """Of the classes of inputs and the answers to them print accuracy, accuracy by class and what was taken for what;
    leave a row an input in `csv`.

    Exits 1 where some inputs could not be read: they are told, and left out of every figure.
    """
    from protosphere.serving.labelled_data import confusion

    counts = confusion(judged, len(trained.class_names))
    if csv is not None:
        write_answers(csv, judged, trained.class_names)
    if as_json:
        unknown = {"unknown_categories": sum(bool(answer.unknown) for _, answer in judged)}
        typer.echo(json.dumps(_as_json(counts, rule, trained.class_names) | unknown))
    else:
        _show(counts, rule, trained)
    tell_problems([answer for _, answer in judged])


def tell_problems(answers: "Sequence[Answer]") -> None:
    """Say which inputs could not be read, and exit with 1 if there are any."""
    problems = [answer.problem for answer in answers if answer.problem]
    for problem in problems[:MOST_PROBLEMS]:
        typer.echo(problem, err=True)
    if len(problems) > MOST_PROBLEMS:
        typer.echo(f"... and {len(problems) - MOST_PROBLEMS} more could not be read", err=True)
    if problems:
        raise typer.Exit(UNREADABLE)


def tell_unknown(answers: "Sequence[Answer]") -> None:
    """Say how many rows have a category that no training sample had, and in which columns."""
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
    """A row an input: its name, its class where that is known, the prediction and its probability."""
    from protosphere.core.files import replacing
    from protosphere.reports.csv_files import as_csv

    rows: list[list[object]] = [["input", "label", "prediction", "probability"]]
    for label, answer in judged:
        predicted = None if answer.problem else names[answer.label]
        rows.append([answer.source, None if label is None else names[label], predicted, answer.confidence])
    try:
        with replacing(path) as temporary:
            temporary.write_text(as_csv(rows), "utf-8")
    except OSError as error:
        end(f"--csv {path} cannot be written ({error.strerror or error}); name a file of yours.")


def _shares(counts: "NDArray[np.int64]") -> list[tuple[int, int, float | None]]:
    """Of each class: rows, right, and accuracy if it has rows."""
    pairs = zip(counts.sum(axis=1).tolist(), counts.diagonal().tolist(), strict=True)
    return [(rows, right, right / rows if rows else None) for rows, right in pairs]


def _as_json(counts: "NDArray[np.int64]", rule: str, names: Sequence[str]) -> dict[str, Any]:
    rows, right = int(counts.sum()), int(counts.trace())
    shares = zip(names, _shares(counts), strict=True)
    return {
        "rule": rule,
        "rows": rows,
        "right": right,
        "accuracy": right / rows if rows else None,
        "classes": {name: {"rows": n, "right": some, "accuracy": share} for name, (n, some, share) in shares},
        "confusion": counts.tolist(),
    }


def _show(counts: "NDArray[np.int64]", rule: str, trained: "Trained") -> None:
    names = trained.class_names
    rows, right = int(counts.sum()), int(counts.trace())
    typer.echo(f"client {trained.partition} of run {trained.run}, {trained.model} by {rule}")
    typer.echo(
        f"accuracy: {100 * right / rows:.1f} % ({right} of {rows})" if rows else "accuracy: no input could be read"
    )
    if not rows:
        return
    # Text: a name is no markup
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class", overflow="fold")
    for head in ("inputs", "right", "accuracy"):
        table.add_column(head, justify="right", no_wrap=True)
    true_labels = [label for label, (n, _, _) in enumerate(_shares(counts)) if n]
    for label in true_labels:
        n, some, share = _shares(counts)[label]
        table.add_row(Text(names[label]), str(n), str(some), "-" if share is None else f"{100 * share:.1f} %")
    terminal = console()
    terminal.print(table)
    all_labels = [label for label in range(len(names)) if counts[label].any() or counts[:, label].any()]
    if len(all_labels) <= MOST_COLUMNS:
        matrix = Table(box=box.SIMPLE_HEAD, title="true class, by the class that was answered", title_justify="left")
        matrix.add_column("")
        for label in all_labels:
            matrix.add_column(Text(names[label]), justify="right")
        for label in true_labels:
            matrix.add_row(Text(names[label]), *(str(counts[label, other] or "") for other in all_labels))
        terminal.print(matrix)
        return
    wrong = [(int(counts[t, p]), t, p) for t in true_labels for p in all_labels if t != p and counts[t, p]]
    for number, true, other in sorted(wrong, key=lambda mistake: (-mistake[0], mistake[1:]))[:MOST_COLUMNS]:
        typer.echo(f"{number} of {names[true]} taken for {names[other]}")
