"""`protosphere runs`: lists runs and comparisons, with their progress."""

import json
from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import end, option
from protosphere.cli.tables import print_table
from protosphere.core.errors import SettingError

COMPARISON = "comparison.json"


def runs(results: Annotated[str, option("The folder that holds the runs' folders.", "DIR")] = "") -> None:
    """List runs and comparisons, the oldest first.

    `--resume` continues a `stopped` one. Finished rounds or trials follow the state.
    `%` is the headline accuracy.

    Exits 0, or 2 if the results folder is a file.
    """
    from protosphere.core.home import results_root

    root = results_root(results)
    if root.is_file():
        end(f"{root} is a file, not a folder of results; name the folder.")
    # editors keep files of this name in hidden folders
    files = [*root.glob(f"[!.]*/{COMPARISON}"), *root.glob("[!.]*/settings.json")]
    rows = []
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        describe = _describe_comparison if file.name == COMPARISON else _describe_run
        try:
            cells = describe(file.parent)
        except (SettingError, OSError, ValueError, KeyError, TypeError, AttributeError):
            # broken folders are listed, too
            cells = ("?", "?", "unreadable", "-")
        rows.append((file.parent.name, *cells))
    if not rows:
        typer.echo(f"{root} holds no run; `protosphere run` starts one.")
        return
    print_table(("name", "method", "data", "state", "%"), rows, left=4)
    typer.echo(f"in {root}")


def _describe_run(folder: Path) -> tuple[str, str, str, str]:
    """Method, data, state and accuracy in %."""
    from protosphere.core.plugins import stem
    from protosphere.data.domains import short_name
    from protosphere.record.folder import RunFolder

    record = RunFolder(folder)
    settings = record.settings()
    method, data = stem(str(settings["strategy"])), short_name(str(settings["dataset"]))
    if not (folder / "status.json").exists():
        return method, data, "starting", "-"
    status = record.status()
    headline = record.summary()["headline"] if (folder / "summary.json").exists() else status.get("latest") or {}
    accuracy = headline.get("accuracy")
    state = f"{status['state']} {status['round']}/{status['rounds']}"
    return method, data, state, "-" if accuracy is None else f"{100 * accuracy:.2f}"


def _describe_comparison(folder: Path) -> tuple[str, str, str, str]:
    from protosphere.core.files import is_held
    from protosphere.data.domains import short_name

    trials = json.loads((folder / COMPARISON).read_bytes())["trials"]
    datasets = dict.fromkeys(short_name(str(trial["settings"]["dataset"])) for trial in trials)
    done = sum(any(folder.glob(f"trials/{trial['name']}/*/summary.json")) for trial in trials)
    state = "completed" if done == len(trials) else "running" if is_held(folder) else "stopped"
    return f"{len(trials)} trials", ", ".join(datasets), f"{state} {done}/{len(trials)}", "-"
