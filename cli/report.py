"""`protosphere report`: a run's report, written anew from its folder."""

from pathlib import Path
from typing import Annotated

import typer

BAD_INPUT = 2


def report(
    folder: Annotated[str, typer.Argument(help="A run's folder, its name in the results folder, or `latest`.")],
    results: Annotated[
        str, typer.Option(help="The folder that holds the runs' folders.", metavar="DIR", show_default=False)
    ] = "",
) -> None:
    """Write a run's report anew.

    report.html and its pictures go into the folder of the run, finished or interrupted. Everything comes from that
    folder, wherever it was copied to.

    Exits 0 when the report was written, else 2.
    """
    from federation.settings import SettingError
    from reports.report import write_report
    from runs.places import find_run, results_root

    try:
        if folder == "latest":
            place = find_run(folder, results)
        else:
            here, there = Path(folder).expanduser(), results_root(results) / folder
            place = there if there.is_dir() and not here.exists() else here
        typer.echo(f"report: {write_report(place.resolve())}")
    except SettingError as error:
        typer.echo(str(error), err=True)
    except OSError as error:
        typer.echo(f"the report cannot be written to {folder} ({error.strerror or error}); copy the run.", err=True)
    else:
        return
    raise typer.Exit(BAD_INPUT)
