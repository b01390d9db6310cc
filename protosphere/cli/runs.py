"""`protosphere runs`: what there is, and away with some."""

import sys
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from protosphere.cli.help import Command, Group
from protosphere.cli.options import end, option
from protosphere.cli.tables import console
from protosphere.core.errors import UserError

RESULTS = option("The results folder.", "DIR", "--results")

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def runs(context: typer.Context, results: Annotated[str, RESULTS] = "") -> None:
    """List runs and comparisons, or delete some.

    `--resume` continues a `stopped` one. Finished rounds or trials follow the state.
    `%` is the headline accuracy. The size includes the clients' models in this PROTOSPHERE_HOME.

    Exits 0, or 2 if the results folder is a file.
    """
    if context.invoked_subcommand is not None:
        return
    from protosphere.core.home import results_root
    from protosphere.core.plugins import stem
    from protosphere.core.text import readable_size
    from protosphere.data.domains import short_name
    from protosphere.stored_runs import list_stored

    root = results_root(results)
    if root.is_file():
        end(f"{root} is a file, not a folder of results; name the folder.")
    entries = list_stored(results)
    if not entries:
        typer.echo(f"{root} holds no run; `protosphere run` starts one.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("name", "method", "data"):
        # a narrow terminal folds what may be long, and loses nothing
        table.add_column(name, min_width=8, overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("%", "size"):
        table.add_column(name, no_wrap=True, justify="right")
    for entry in entries:
        headline = "-" if entry.headline is None else f"{100 * entry.headline:.2f}"
        state, size = f"{entry.state} {entry.rounds}", readable_size(entry.size)
        table.add_row(entry.name, stem(entry.what), short_name(entry.dataset), state, headline, size)
    console().print(table)
    typer.echo(f"in {root}: {readable_size(sum(entry.size for entry in entries))}")


def _in(context: typer.Context, results: str) -> str:
    """The results folder: a command's own, or what stands before the command."""
    before = context.parent.params.get("results") if context.parent else ""
    return results or str(before or "")


def delete(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Names or folders.", metavar="RUN...")],
    results: Annotated[str, RESULTS] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs and their clients' models.

    Deleting a comparison deletes all its trials. Models are deleted from this PROTOSPHERE_HOME.

    Exits 0, 1 if the answer was not yes, or 2 if a name is no run or one is being written. Then nothing is deleted.
    """
    from protosphere.stored_runs import delete as away
    from protosphere.stored_runs import find

    try:
        folders = [find(name, _in(context, results)) for name in names]
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            typer.echo(f"{folder}")
        if not yes:
            if not sys.stdin.isatty():
                end("this is no terminal, so nobody can confirm; give --yes to delete them.")
            if not typer.confirm(f"Delete {'it' if len(folders) == 1 else 'them'}, with the clients' models?"):
                raise typer.Exit(1)
        away(folders, _in(context, results))
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(f"{error.filename or 'a folder'} cannot be deleted ({error.strerror}).", 1)


app.command("delete", cls=Command, epilog="    protosphere runs delete 20260101-120000-local-digits-5f0c91aa --yes")(
    delete
)
