"""What several commands have: options with the same words, and how they end."""

from typing import Annotated, NoReturn

import typer

from protosphere.cli import complete

Preset = Annotated[
    str,
    typer.Option(
        help="A paper's settings by name; an unknown one lists all.",
        metavar="NAME",
        show_default=False,
        autocompletion=complete.presets,
    ),
]

Rule = Annotated[
    str, typer.Option(help="Another prediction rule than the client's own.", metavar="NAME", show_default=False)
]
Encoder = Annotated[
    str,
    typer.Option(
        help="Where the public encoder of the rule `encoder` lies, if elsewhere than at the client.",
        metavar="NAME",
        show_default=False,
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that the folder names, though this PROTOSPHERE_HOME has not run it itself."),
]


def end(sentence: str, code: int) -> NoReturn:
    """Leave with a sentence on stderr."""
    typer.echo(sentence, err=True)
    raise typer.Exit(code)
