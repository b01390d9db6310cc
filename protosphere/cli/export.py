"""`protosphere export`: a client's model as one file that works without this project."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import Encoder, Rule, State, Trust, end, option
from protosphere.core.errors import UserError


def export(
    state: State,
    output: Annotated[
        Path, typer.Option(help="The file to write: model.pt2, or model.onnx (with the extra `onnx`).", metavar="FILE")
    ],
    rule: Rule = "",
    encoder: Encoder = "",
    force: Annotated[bool, option("Overwrite an existing file.", None, "--force")] = False,
    trust: Trust = False,
) -> None:
    """Write a client's model as one file for use elsewhere.

    It also holds the class names and describes its inputs, and runs without Protosphere; docs/predict.md shows how.

    Exits 0 if the file was written, else 2.
    """
    from protosphere.serving.export import export as write
    from protosphere.serving.predict import open_trained

    try:
        trained = open_trained(state, "cpu", encoder, trust)
        write(trained, output, rule, force)
    except UserError as error:
        end(str(error))
    size = output.stat().st_size
    typer.echo(f"wrote {output}: {trained.model} by {trained.find_rule(rule)}, {size} bytes")
