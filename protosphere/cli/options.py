"""What several commands have: options with the same words, and how they end."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from protosphere.cli import complete

FAILED = 1
BAD_INPUT = 2
KILLED = 128  # plus the signal's number, as shells count


def option(
    help: str, metavar: str | None = None, *names: str, complete: Callable[..., Any] | None = None, **more: Any
) -> Any:
    """`typer.Option` without its default in the help, where the words say it."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False, autocompletion=complete, **more)


Preset = Annotated[
    str, option("A paper's settings by name; an unknown one lists all.", "NAME", complete=complete.presets)
]
Rule = Annotated[str, option("Another inference rule than the client's own.", "NAME")]
Encoder = Annotated[
    str, option("Where the public encoder of the rule `encoder` lies, if elsewhere than at the client.", "NAME")
]
State = Annotated[
    Path, typer.Option(help="The client's folder: PROTOSPHERE_HOME/clients/<run>/<partition>.", metavar="FOLDER")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that the folder names, though this PROTOSPHERE_HOME has not run it itself."),
]


def end(sentence: str, code: int = BAD_INPUT) -> NoReturn:
    """Leave with a sentence on stderr."""
    typer.echo(sentence, err=True)
    raise typer.Exit(code) from None
