"""`protosphere report`: a run's report, written anew from its folder."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli import complete
from protosphere.cli.options import Trust, end, option
from protosphere.core.errors import ToldError

STATE = (
    "A client's folder, PROTOSPHERE_HOME/clients/<run>/<partition>: print the figures that it keeps to itself under "
    "`privacy`."
)
HTML = "With --state: write a page instead: what left this machine, how the model fares here, the settings."


def report(
    folder: Annotated[
        str,
        typer.Argument(
            help="A run's folder, its name in the results folder, or `latest`.",
            show_default=False,
            autocompletion=complete.runs,
        ),
    ] = "",
    results: Annotated[str, option("The folder that holds the runs' folders.", "DIR")] = "",
    state: Annotated[str, option(STATE, "FOLDER")] = "",
    html: Annotated[str, option(HTML, "FILE")] = "",
    trust: Trust = False,
) -> None:
    """Write a run's report anew, or print what a client alone knows.

    report.html and its pictures go into the folder of the run, finished or interrupted. Everything comes from that
    folder, wherever it was copied to. A method's code that this home has not run itself is run with --trust alone.

    Exits 0 when the report was written, else 2.
    """
    if bool(folder) == bool(state):
        end("give a run's folder, or --state and a client's folder.")
    if html and not state:
        end("--html is a client's own page: give --state and its folder, too.")
    if html:
        _write_site_page(Path(state).expanduser(), Path(html).expanduser())
        return
    if state:
        _print_site_figures(Path(state).expanduser())
        return
    from protosphere.record.locations import find_run, results_root
    from protosphere.reports.report import write_report

    try:
        if folder == "latest":
            place = find_run(folder, results)
        else:
            given_path, results_path = Path(folder).expanduser(), results_root(results) / folder
            place = results_path if results_path.is_dir() and not given_path.exists() else given_path
        typer.echo(f"report: {write_report(place.resolve(), trust)}")
    except ToldError as error:
        end(str(error))
    except OSError as error:
        end(f"the report cannot be written to {folder} ({error.strerror or error}); copy the run.")


def _write_site_page(folder: Path, target: Path) -> None:
    from protosphere.reports.site import write_site

    try:
        typer.echo(f"report: {write_site(folder, target).resolve()}")
    except ToldError as error:
        end(str(error))
    except OSError as error:
        end(f"the page cannot be written to {target} ({error.strerror or error}).")


def _print_site_figures(folder: Path) -> None:
    """A line a round: test accuracy by rule, what the client trained on, and what went wrong."""
    from protosphere.core.files import read_sealed_lines

    file = folder / "figures.jsonl"
    if (folder / "client.json").is_file() and not file.exists():
        end(f"{folder} keeps no figures, as clients do under `privacy` alone; --html FILE writes its page.")
    try:
        for line in read_sealed_lines(file):
            rows = line.get("rows", [0])[0]
            rules = [f"{rule} {100 * right[0] / rows:.1f} %" for rule, right in line.get("correct", {}).items() if rows]
            trained = [f"trained on {line['training_rows']} samples"] if "training_rows" in line else []
            wrong = [f"problem: {line['problem']}"] if line.get("problem") else []
            # the evaluation is of the model as the round before left it
            typer.echo(f"round {line['round']}: " + ", ".join([*rules, *trained, *wrong]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        end(f"{file} holds no figures of a client ({error}); give the folder of one.")
