"""`protosphere export`: a client's model as one file that needs no part of this project."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import Encoder, Rule, Trust

BAD_INPUT = 2


def export(
    state: Annotated[
        Path, typer.Option(help="The client's folder: PROTOSPHERE_HOME/clients/<run>/<partition>.", metavar="FOLDER")
    ],
    output: Annotated[Path, typer.Option(help="The file to write, such as model.pt2 or model.onnx.", metavar="FILE")],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="torch (torch.export, .pt2) or onnx (.onnx, needs the extra `onnx`); the file's name says it as well.",
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    rule: Rule = "",
    encoder: Encoder = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    trust: Trust = False,
) -> None:
    """Write a client's model as one file for elsewhere.

    It holds the prototypes and class names, too, and needs no part of Protosphere; docs/predict.md tells how to use it.

    Exits 0 when the file is written, and 2 when it cannot be.
    """
    from protosphere.client_app.public_errors import USER_ERRORS
    from protosphere.serving.export import export as write
    from protosphere.serving.predict import open_trained

    try:
        trained = open_trained(state, "cpu", encoder, trust)
        for notice in trained.notices:
            typer.echo(f"warning: {notice}", err=True)
        write(trained, output, kind, rule, force)
    except USER_ERRORS as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(BAD_INPUT) from None
    size = output.stat().st_size
    typer.echo(f"wrote {output}: {trained.model} by {trained.chosen(rule)}, {size} bytes")
