"""`protosphere report`: a run's report, written anew from its folder; or several runs over each other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli import complete
from protosphere.cli.options import Trust, end, option
from protosphere.core.errors import UserError

STATE = (
    "A client's folder, PROTOSPHERE_HOME/clients/<run>/<partition>. Prints the metrics that the client withholds "
    "under `privacy`."
)
HTML = (
    "The file for the page: of several runs, or with --state of a client (what left this machine, accuracy here, "
    "settings)."
)


def report(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            help="A run's folder, its name in the results folder, or `latest`. Several runs make one page.",
            metavar="[RUN...]",
            show_default=False,
            autocompletion=complete.runs,
        ),
    ] = None,
    results: Annotated[str, option("The folder that holds the runs' folders.", "DIR")] = "",
    state: Annotated[str, option(STATE, "FOLDER")] = "",
    html: Annotated[str, option(HTML, "FILE")] = "",
    trust: Trust = False,
) -> None:
    """Write a run's report, or one page that overlays several runs.

    The report and its pictures go into the run's folder. The run may be finished or interrupted, and its folder may
    have been copied here. A method's code that lies in the folder is only run with --trust.

    Two or more runs get one page, in the results folder or at --html. It overlays their curves and lists their metrics
    and the settings in which they differ. On the page you choose which runs are shown.

    Exits 0 if the report was written, else 2.
    """
    if bool(folders) == bool(state):
        end("give a run's folder, or --state and a client's folder.")
    if html and not state and len(folders or ()) < 2:
        end("--html writes a page of several runs or of a client: give more runs, or --state and a client's folder.")
    if html and state:
        _write_site_page(Path(state).expanduser(), Path(html).expanduser())
        return
    if state:
        _print_site_figures(Path(state).expanduser())
        return
    folder, *others = folders or [""]
    if others:
        _write_overlay([folder, *others], results, html, trust)
        return
    from protosphere.reports.report import write_report

    try:
        typer.echo(f"report: {write_report(_find(folder, results), trust)}")
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(f"the report cannot be written to {folder} ({error.strerror or error}); copy the run.")


def _find(name: str, results: str) -> Path:
    """The folder that a run's name stands for, whether there is one or not.

    Raises:
        SettingError: there is no latest.
    """
    from protosphere.core.home import results_root
    from protosphere.record.folder import find_run

    if name == "latest":
        return find_run(name, results).resolve()
    given_path, results_path = Path(name).expanduser(), results_root(results) / name
    return (results_path if results_path.is_dir() and not given_path.exists() else given_path).resolve()


def _write_overlay(names: Sequence[str], results: str, html: str, trust: bool) -> None:
    from protosphere.core.home import results_root
    from protosphere.reports.results import read_results
    from protosphere.runs.overlay import file_name, write_overlay

    target = Path()
    try:
        runs = [read_results(_find(name, results), trust) for name in names]
        target = Path(html).expanduser() if html else results_root(results) / file_name(runs)
        typer.echo(f"report: {write_overlay(runs, target).resolve()}")
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(f"the page cannot be written to {target} ({error.strerror or error}); give another place by --html.")


def _write_site_page(folder: Path, target: Path) -> None:
    from protosphere.reports.site import write_site

    try:
        typer.echo(f"report: {write_site(folder, target).resolve()}")
    except UserError as error:
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
