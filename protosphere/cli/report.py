"""`protosphere report`: writes a run's report again, or prints the metrics that a client under `privacy` keeps to
itself."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import end, option
from protosphere.core.errors import UserError

STATE = (
    "A client's folder, PROTOSPHERE_HOME/clients/<run>/<partition>. Prints the metrics that the client withholds "
    "under `privacy`."
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
        _print_site_figures(Path(state).expanduser())
        return
    from protosphere.results import load

    try:
        typer.echo(f"report: {load(folder, results).report()}")
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(f"the report cannot be written to {folder} ({error.strerror or error}); copy the run.")


def _print_site_figures(folder: Path) -> None:
    """Print one line per round: test accuracy by rule, the training samples, and problems."""
    from protosphere.core.files import read_lines

    file = folder / "figures.jsonl"
    if (folder / "client.json").is_file() and not file.exists():
        end(f"{folder} holds no metrics; clients store them there only under `privacy`.")
    try:
        for line in read_lines(file):
            rows = line.get("rows", [0])[0]
            rules = [f"{rule} {100 * right[0] / rows:.1f} %" for rule, right in line.get("correct", {}).items() if rows]
            trained = [f"trained on {line['training_rows']} samples"] if "training_rows" in line else []
            wrong = [f"problem: {line['problem']}"] if line.get("problem") else []
            # the evaluation is that of the model after the previous round
            typer.echo(f"round {line['round']}: " + ", ".join([*rules, *trained, *wrong]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        end(f"{file} cannot be read as a client's metrics ({error}).")
