"""What several commands have: options with the same words, and how they end."""

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

FAILED = 1
BAD_INPUT = 2
KILLED = 128  # plus the signal's number, as shells count


def option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """`typer.Option` without its default in the help, where the words say it."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False, **more)


Preset = Annotated[
    str,
    option(
        "The settings of a paper's experiment, by name (`protosphere presets` lists all).",
        "NAME",
    ),
]
Rule = Annotated[str, option("The inference rule (default: the client's own).", "NAME")]
Encoder = Annotated[
    str, option("The public encoder for the rule `encoder`, if it is elsewhere than at the client.", "NAME")
]
State = Annotated[
    Path, typer.Option(help="The client's folder: PROTOSPHERE_HOME/clients/<run>/<partition>.", metavar="FOLDER")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that lies in the folder, such as a method of somebody else's."),
]


def end(sentence: str, code: int = BAD_INPUT) -> NoReturn:
    """Leave with a sentence on stderr."""
    typer.echo(sentence, err=True)
    raise typer.Exit(code) from None
