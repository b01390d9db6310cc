"""`protosphere export`: a client's model as one file that needs no part of this project."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import Encoder, Rule, State, Trust, end, option
from protosphere.core.errors import ToldError

KIND = "torch (torch.export, .pt2) or onnx (.onnx, needs the extra `onnx`); the file's name says it as well."


def export(
    state: State,
    output: Annotated[Path, typer.Option(help="The file to write, such as model.pt2 or model.onnx.", metavar="FILE")],
    kind: Annotated[str, option(KIND, "NAME", "--format")] = "",
    rule: Rule = "",
    encoder: Encoder = "",
    force: Annotated[bool, option("Replace a file that is there.", None, "--force")] = False,
    trust: Trust = False,
) -> None:
    """Write a client's model as one file for elsewhere.

    It holds the prototypes and class names, too, and needs no part of Protosphere; docs/predict.md tells how to use it.

    Exits 0 when the file is written, and 2 when it cannot be.
    """
    from protosphere.serving.export import export as write
    from protosphere.serving.predict import open_trained

    try:
        trained = open_trained(state, "cpu", encoder, trust)
        for notice in trained.notices:
            typer.echo(f"warning: {notice}", err=True)
        write(trained, output, kind, rule, force)
    except ToldError as error:
        end(str(error))
    size = output.stat().st_size
    typer.echo(f"wrote {output}: {trained.model} by {trained.chosen(rule)}, {size} bytes")
