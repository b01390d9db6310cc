"""`protosphere methods`, `models`, `presets`, `settings`: the available choices."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from protosphere.cli.tables import print_table

Search = Annotated[
    str,
    typer.Option(
        help="List only entries that contain this word (case is ignored).", metavar="WORD", show_default=False
    ),
]


def methods(search: Search = "") -> None:
    """List the methods that `strategy` names.

    `up` and `down` are what clients and server send with the default settings. Architectures: with `any`,
    different ones exchange; with grouped, only equal ones do; with one per run, all must be equal.

    Exits 0.
    """
    from protosphere.cli.listing import methods as rows

    _print(("strategy", "what it is", "up", "down", "architectures"), rows(), search)


def models(search: Search = "") -> None:
    """List the models that `models` names.

    Exits 0.
    """
    from protosphere.cli.listing import models as rows

    _print(("family", "models"), rows(), search)


def presets(search: Search = "") -> None:
    """List the presets: settings of the papers' experiments.

    Exits 0.
    """
    from protosphere.cli.listing import presets as rows

    _print(("for", "--preset", "what it is"), rows(), search)


def settings(search: Search = "") -> None:
    """List the settings with their defaults and allowed values.

    Exits 0, or 1 if no setting contains the word.
    """
    from protosphere.cli.listing import settings as rows

    _print(("setting", "default", "allowed", "meaning"), rows(), search)


def _print(head: Sequence[str], rows: Iterable[Sequence[str]], search: str) -> None:
    matches = [row for row in rows if search.lower() in " ".join(row).lower()]
    if not matches:
        typer.echo(f"nothing here has {search!r} in it.", err=True)
        raise typer.Exit(1)
    print_table(head, matches, left=len(head))
