"""`protosphere runs`: lists the results folder."""

from typing import Annotated

import typer

from protosphere.cli.options import end, option
from protosphere.cli.tables import print_table


def runs(results: Annotated[str, option("The results folder.", "DIR", "--results")] = "") -> None:
    """List runs and comparisons.

    `--resume` continues a `stopped` one. Finished rounds or trials follow the state.
    `%` is the headline accuracy. The size includes the clients' models in this PROTOSPHERE_HOME.

    Exits 0, or 2 if the results folder is a file.
    """
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
    rows = []
    for entry in entries:
        headline = "-" if entry.headline is None else f"{100 * entry.headline:.2f}"
        state, size = f"{entry.state} {entry.rounds}", readable_size(entry.size)
        rows.append((entry.name, stem(entry.what), short_name(entry.dataset), state, headline, size))
    print_table(("name", "method", "data", "state", "%", "size"), rows, left=4)
    typer.echo(f"in {root}: {readable_size(sum(entry.size for entry in entries))}")
