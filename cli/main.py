"""The `protosphere` command. What a command needs is imported when it runs, so that `--help` answers at once."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from cli.compare import compare
from cli.data import data
from cli.export import export
from cli.predict import predict
from cli.report import report
from cli.run import run

app = typer.Typer(
    help="Prototype-based federated learning for clients that differ in data, model and machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run)
app.command("compare")(compare)
app.command("data")(data)
app.command("report")(report)
app.command("predict")(predict)
app.command("export")(export)


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"protosphere {version('protosphere')}")
        except PackageNotFoundError:
            typer.echo("protosphere (from a checkout that is not installed)")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Prototype-based federated learning for clients that differ in data, model and machine."""


if __name__ == "__main__":
    app()
