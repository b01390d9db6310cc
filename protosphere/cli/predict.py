"""`protosphere predict`: a trained client's predictions for images, texts and rows of numbers."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import Encoder, Rule, State, Trust, end, option
from protosphere.cli.tables import print_table
from protosphere.core.errors import SettingError, UserError

if TYPE_CHECKING:
    from protosphere.serving.predict import Answer


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
    as_json: Annotated[bool, option("Print one line of JSON per input.", None, "--json")] = False,
    csv: Annotated[
        Path | None, option("Write one line per input to this file; for a folder, table or .npz file.", "FILE")
    ] = None,
    label_column: Annotated[str, option("The table's column that holds the classes.", "NAME")] = "",
    trust: Trust = False,
) -> None:
    """Classify images, texts or table rows with a client's model.

    It uses the private model in the folder where the client trained it. No training data are needed.

    Labelled inputs are measured: accuracy, accuracy per class, and a confusion matrix. These are a folder whose
    subfolders are named by class, a table (.csv, .parquet) with a column of classes, or arrays (.npz) with
    `y`. A table needs the columns of the training data, and arrays need their shape.

    Exits 0 if all inputs could be read, 1 if some could not, and 2 if the client or the options cannot be used.
    """
    from protosphere.cli.measure import measure, tell_problems, tell_unknown, write_answers
    from protosphere.serving.inputs import is_collection, read_inputs
    from protosphere.serving.predict import open_trained
    from protosphere.serving.predict import predict as answers_of

    sources: list[Path | str] = [*(files or []), *(texts or [])]
    try:
        trained = open_trained(state, device, encoder, trust)
        rule_name = trained.find_rule(rule)
        inputs = read_inputs(trained, sources, label_column)
        if csv and not (files and len(sources) == 1 and is_collection(files[0])):
            raise SettingError("--csv goes with one folder of classes, one table or one .npz file, and nothing else.")
        answers = list(answers_of(trained, rule_name, inputs))
    except UserError as error:
        end(str(error))
    tell_unknown(answers)
    labelled = [(item.label, answer) for item, answer in zip(inputs, answers, strict=True) if item.label is not None]
    if labelled:
        measure(trained, rule_name, labelled, as_json, csv)
        return
    if csv:
        write_answers(csv, [(None, answer) for answer in answers], trained.class_names)
    read = [answer for answer in answers if not answer.problem]
    if as_json:
        for answer in read:
            typer.echo(json.dumps(_as_json(answer, rule_name, trained.class_names)))
    elif read:
        typer.echo(f"client {trained.partition} of run {trained.run}, {trained.model} by {rule_name}")
        _print_table(read, trained.class_names)
    tell_problems(answers)


def _as_json(answer: "Answer", rule: str, class_names: tuple[str, ...]) -> dict[str, object]:
    return {
        "input": answer.source,
        "rule": rule,
        "class": class_names[answer.label],
        "label": answer.label,
        "score": answer.score,
        "confidence": answer.confidence,
        **({"unknown_categories": list(answer.unknown)} if answer.unknown else {}),
    }


def _print_table(answers: Iterable["Answer"], class_names: tuple[str, ...]) -> None:
    rows = []
    for answer in answers:
        share = "-" if answer.confidence is None else f"{100 * answer.confidence:.1f} %"
        rows.append((answer.source, class_names[answer.label], share, f"{answer.score:.4g}"))
    print_table(("input", "class", "confidence", "score"), rows, left=2)
