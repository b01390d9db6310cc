"""Writes status.json while a run is on, and the report at its end."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from protosphere.core.errors import RunError, SettingError
from protosphere.core.flower import call_when_stopped
from protosphere.core.settings import Settings
from protosphere.record.folder import UNFINISHED, RunFolder
from protosphere.server_app.agreement import RosterError
from protosphere.strategies import Run
from protosphere.strategies.user_method import failing_as

USER_ERRORS = (SettingError, RosterError, RunError)


@contextmanager
def record_run(run: Run, folder: RunFolder, flower_run: int, grid: Grid) -> Iterator[None]:
    """Keep status.json up to date during the run inside and write its report; a folder without a round is removed.

    Raises:
        RunError: a user's method fails inside.
    """
    try:
        blamed = failing_as(RunError, run.settings.strategy, run.method, USER_ERRORS)
        with status_file(run.settings, run.inference, folder, flower_run, grid), blamed:
            yield
    except (SettingError, RosterError):
        folder.discard_unless_begun()
        raise
    except RunError:
        if run.settings.report and (folder.path / "metrics.jsonl").exists():
            leave_report(folder.path)
        raise
    if run.settings.report:
        leave_report(folder.path)


def leave_report(folder: Path) -> None:
    """Write the report of a run's folder; a failure is only logged."""
    # these imports take half a second, which no round should wait for
    from protosphere.reports import report

    report.leave_report(folder)


@contextmanager
def status_file(settings: Settings, rule: str, folder: RunFolder, flower_run: int, grid: Grid) -> Iterator[None]:
    """Keep status.json up to date during the run inside; docs/running.md lists its keys.

    A killed process leaves an outdated file, which `RunFolder.status` recognises.
    """
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
        if test := line.get("evaluation", {}).get("rules", {}).get(rule, {}).get("test"):
            status["latest"] = {"accuracy": test["mean"], "round": line["round"]}
        write(state="running", round=line["round"])

    def stop() -> None:
        if may_write and status["state"] in UNFINISHED:
            with suppress(SettingError):
                write(state="stopped")

    if may_write:
        write()
    call_when_stopped(grid, stop)
    folder.listeners.append(on_line)
    try:
        yield
    except Exception as error:
        if may_write:
            with suppress(SettingError):
                write(state="failed", problem=str(error))
        raise
    except BaseException:
        # a signal, or in a deployment Flower's message that the run was stopped
        stop()
        raise
    finally:
        folder.listeners.remove(on_line)
    write(state="completed")
