"""`protosphere predict`: a trained client's predictions for images, texts and rows of numbers."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import FAILED, Encoder, Rule, State, Trust, end, option
from protosphere.cli.tables import print_table
from protosphere.core.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_PROBLEMS = 20  # problems that are printed


def predict(
    state: State,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Images, text files (for a client that reads text), or one folder of classes, table or .npz file.",
            metavar="INPUT...",
        ),
    ] = None,
    rule: Rule = "",
    texts: Annotated[
        list[str] | None,
        typer.Option("--text", help="A text to classify, for a client that reads text. May be repeated."),
    ] = None,
    encoder: Encoder = "",
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, mps or xpu, also with a number: cuda:0.", metavar="NAME")
    ] = "auto",
    csv: Annotated[Path | None, option("Write one line per input to this file.", "FILE")] = None,
    label_column: Annotated[str, option("The table's column that holds the classes.", "NAME")] = "",
    trust: Trust = False,
) -> None:
    """Classify images, texts or table rows with a client's model.

    It uses the private model in the folder where the client trained it. No training data are needed.

    If the classes of the inputs are known, their accuracy is printed, too. They are known of a folder whose
    subfolders are named by class, a table (.csv, .parquet) with a column of classes, and arrays (.npz) with
    `y`. A table needs the columns of the training data, and arrays need their shape.

    Exits 0 if all inputs could be read, 1 if some could not, and 2 if the client or the options cannot be used.
    """
    import pandas as pd

    from protosphere.core.files import replacing
    from protosphere.reports.frames import as_csv
    from protosphere.serving.inputs import read_inputs
    from protosphere.serving.predict import open_trained
    from protosphere.serving.predict import predict as answers_of

    try:
        trained = open_trained(state, device, encoder, trust)
        rule_name = trained.find_rule(rule)
        inputs = read_inputs(trained, [*(files or []), *(texts or [])], label_column)
        answers = list(answers_of(trained, rule_name, inputs))
    except UserError as error:
        end(str(error))

    rows = []
    for item, answer in zip(inputs, answers, strict=True):
        row: dict[str, object] = {"input": answer.source}
        row["label"] = None if item.label is None else trained.class_names[item.label]
        if not answer.problem:
            row |= {"prediction": trained.class_names[answer.label], "probability": answer.confidence}
            row |= {"score": answer.score, "unknown": ", ".join(answer.unknown)}
        rows.append(row)
    table = pd.DataFrame(rows, columns=["input", "label", "prediction", "probability", "score", "unknown"])
    if csv is not None:
        try:
            with replacing(csv) as temporary:
                temporary.write_text(as_csv(table), "utf-8")
        except (OSError, ValueError) as error:
            # ValueError: a path without a name, such as "."
            reason = getattr(error, "strerror", None) or error
            end(f"--csv {csv} cannot be written ({reason}); name a file of yours.")

    typer.echo(f"client {trained.partition} of run {trained.run}, {trained.model} by {rule_name}")
    read = table.dropna(subset="prediction")
    if read.empty:
        typer.echo("no input could be read")
    else:
        _print_answers(read)
    unknown = Counter(name for answer in answers for name in answer.unknown)
    if unknown:
        number = sum(bool(answer.unknown) for answer in answers)
        columns = ", ".join(f"{name} ({count})" for name, count in unknown.items())
        typer.echo(
            f"warning: {number} of {len(answers)} rows have a category that no training sample had, which counts as "
            f"none of those that the model knows: {columns}",
            err=True,
        )
    _end_with_problems([answer.problem for answer in answers if answer.problem])


def _print_answers(table: "DataFrame") -> None:
    """Print the accuracy and scikit-learn's report of labelled inputs, or a line per input without labels."""
    import pandas as pd
    from sklearn.metrics import classification_report

    from protosphere.core.text import one_line

    labelled = table.dropna(subset="label")
    if labelled.empty:
        lines = []
        for row in table.itertuples():
            probability = "-" if pd.isna(row.probability) else f"{100 * row.probability:.1f} %"
            lines.append((row.input, row.prediction, probability, f"{row.score:.4g}"))
        print_table(("input", "class", "probability", "score"), lines, left=2)
        return
    right = (labelled["label"] == labelled["prediction"]).sum()
    typer.echo(f"accuracy: {100 * right / len(labelled):.1f} % ({right} of {len(labelled)})")
    names = labelled[["label", "prediction"]].map(one_line)
    typer.echo(classification_report(names["label"], names["prediction"], digits=3, zero_division=0))


def _end_with_problems(problems: Sequence[str]) -> None:
    """Print which inputs could not be read, and exit with 1 if there are any."""
    for problem in problems[:MOST_PROBLEMS]:
        typer.echo(problem, err=True)
    if len(problems) > MOST_PROBLEMS:
        typer.echo(f"... and {len(problems) - MOST_PROBLEMS} more could not be read", err=True)
    if problems:
        raise typer.Exit(FAILED)
