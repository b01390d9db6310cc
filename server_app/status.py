"""Writes status.json while a run is on, and the report at its end."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from protosphere.core.errors import RunError, SettingError
from protosphere.core.flower import call_when_stopped
from protosphere.record.folder import UNFINISHED, RunFolder
from protosphere.server_app.agreement import RosterError
from protosphere.strategies import Run
from protosphere.strategies.user_method import failing_as

USER_ERRORS = (SettingError, RosterError, RunError)


@contextmanager
def record_run(run: Run, folder: RunFolder, flower_run: int, grid: Grid) -> Iterator[None]:
    """Keep status.json up to date during the run inside, and write its report; a folder without a round is removed.
    docs/running.md lists the keys of status.json.

    A killed process leaves an outdated file, which `RunFolder.status` recognises.

    Raises:
        RunError: a user's method fails inside.
    """
    settings = run.settings
    began = time.monotonic()
    status: dict[str, Any] = {
        "state": "starting",  # until a round is finished
        "round": 0,
        "rounds": settings.rounds,
        "folder": str(folder.path),
        "latest": None,
        "seconds": 0.0,  # since this start
        "problem": "",
        "flower_run": str(flower_run),
    }
    # a refused resume leaves the folder unchanged
    may_write = not settings.resume

    def write(**news: Any) -> None:
        # code that still runs while Flower ends the process must not change the file
        if status["state"] == "stopped":
            return
        status.update(news, seconds=time.monotonic() - began)
        folder.write_status(status)

    def on_line(line: Mapping[str, Any]) -> None:
        nonlocal may_write
        may_write = True
        if test := line.get("evaluation", {}).get("rules", {}).get(run.inference, {}).get("test"):
            status["latest"] = {"accuracy": test["mean"], "round": line["round"]}
        write(state="running", round=line["round"])

    def end(**news: Any) -> None:
        if may_write and status["state"] in UNFINISHED:
            with suppress(SettingError):
                write(**news)

    if may_write:
        write()
    call_when_stopped(grid, lambda: end(state="stopped"))
    folder.listeners.append(on_line)
    try:
        with failing_as(RunError, settings.strategy, run.method, USER_ERRORS):
            yield
    except Exception as error:
        end(state="failed", problem=str(error))
        if isinstance(error, SettingError | RosterError):
            folder.discard_unless_begun()
        elif isinstance(error, RunError) and settings.report and (folder.path / "metrics.jsonl").exists():
            leave_report(folder.path)
        raise
    except BaseException:
        # a signal, or in a deployment Flower's message that the run was stopped
        end(state="stopped")
        raise
    finally:
        folder.listeners.remove(on_line)
    write(state="completed")
    if settings.report:
        leave_report(folder.path)


def leave_report(folder: Path) -> None:
    """Write the report of a run's folder; a failure is only logged."""
    # these imports take half a second, which no round should wait for
    from protosphere.reports import report

    report.leave_report(folder)
