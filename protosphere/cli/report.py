"""`protosphere report`: writes a run's report again, or prints the metrics that a client under `privacy` keeps to
itself."""

import json
from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import end, option
from protosphere.core.errors import UserError

STATE = (
    "A client's folder, PROTOSPHERE_HOME/clients/<run>/<partition>. Prints the metrics that the client withholds "
    "under `privacy`, a line of JSON per round."
)


def report(
    folder: Annotated[
        str,
        typer.Argument(
            help="A run's folder, its name in the results folder, or `latest`.", metavar="[RUN]", show_default=False
        ),
    ] = "",
    results: Annotated[str, option("The folder that holds the runs' folders.", "DIR")] = "",
    state: Annotated[str, option(STATE, "FOLDER")] = "",
) -> None:
    """Write a run's report.

    The report and its pictures go into the run's folder. The run may be finished or interrupted, and its folder may
    have been copied here. No code in it is run.

    Exits 0 if the report was written, else 2.
    """
    if bool(folder) == bool(state):
        end("give a run's folder, or --state and a client's folder.")
    if state:
        _print_client_metrics(Path(state).expanduser())
        return
    from protosphere.results import load

    try:
        typer.echo(f"report: {load(folder, results).report()}")
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(f"the report cannot be written to {folder} ({error.strerror or error}); copy the run.")


def _print_client_metrics(folder: Path) -> None:
    """Print the lines of a client's figures.jsonl as they are, once all were read."""
    from protosphere.core.files import read_lines

    file = folder / "figures.jsonl"
    if not folder.is_dir():
        end(f"--state is {str(folder)!r}, but there is no such folder; give a client's.")
    if not file.exists():
        end(f"{folder} holds no metrics; clients store them there only under `privacy`.")
    try:
        lines = list(read_lines(file))
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is no object")
    except (OSError, ValueError) as error:
        end(f"{file} cannot be read as a client's metrics ({error}).")
    for line in lines:
        typer.echo(json.dumps(line))
