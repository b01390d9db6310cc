"""The Flower ServerApp: read the settings, open the run's folder, let the strategy run, keep status.json meanwhile."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protosphere.core.errors import RunError, SettingError
from protosphere.core.flower import call_when_stopped
from protosphere.core.settings import Settings, refuse_relative_paths
from protosphere.core.startup import end_at_once
from protosphere.record.folder import UNFINISHED, RunFolder
from protosphere.reports.report import leave_report
from protosphere.server_app.callbacks import OnRound
from protosphere.server_app.opening import open_folder
from protosphere.server_app.roster import RosterError
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import read_settings, refuse_foreign
from protosphere.strategies.user_method import failing_as

USER_ERRORS = (SettingError, RosterError, RunError)
# what marks our lines in Flower's stream, and among them why a run failed
PREFIX, PREFIX_OF_ERRORS = "[protosphere] ", "[protosphere error] "

app = ServerApp()
end_at_once()
log = logging.getLogger("protosphere")


class Console(logging.Handler):
    """Hands each line of the run to `show`, whose owner gets errors as exceptions; without one it goes to whatever
    stdout is when the line comes, since Flower redirects that into the run's stream."""

    def __init__(self, show: Callable[[str], None] | None = None):
        super().__init__()
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        # some words are a client's: they must not pass for lines of ours
        line = " ".join(record.getMessage().splitlines())
        failed = record.levelno >= logging.ERROR
        if self.show is None:
            sys.stdout.write(f"{PREFIX_OF_ERRORS if failed else PREFIX}{line}\n")
            sys.stdout.flush()
        elif not failed:
            self.show(line)


@contextmanager
def said(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """While inside, the run's lines go to `show`; an outer `said` goes before an inner one."""
    if any(isinstance(handler, Console) for handler in log.handlers):
        yield
        return
    console = Console(show)
    before = log.level, log.propagate
    log.addHandler(console)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(console)
        log.setLevel(before[0])
        log.propagate = before[1]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from settings to summary.

    Raises:
        SettingError, RosterError, RunError: after the sentence was said in the stream; the run counts as failed.
    """
    run(grid, context)


def run(
    grid: Grid,
    context: Context,
    opened: Callable[[Path], None] = lambda folder: None,
    on_round: OnRound | None = None,
) -> Path:
    """`main`, for whoever calls it in one process.

    Args:
        opened: told the run's folder as soon as there is one.
        on_round: told the line of every round when its checkpoint is written; False ends the run.

    Returns:
        The run's folder.
    """
    with said():
        try:
            return _run(grid, context, opened, on_round)
        except USER_ERRORS as error:
            log.error("%s", error)
            raise


def _run(grid: Grid, context: Context, opened: Callable[[Path], None], on_round: OnRound | None) -> Path:
    refuse_foreign(context.run_config)
    run = read_settings(context.run_config)
    refuse_relative_paths(run.settings)
    folder = open_folder(run, context.run_config)
    with folder.lock():
        log.info("results: %s", folder.path)
        opened(folder.path)
        try:
            blamed = failing_as(RunError, run.settings.strategy, run.method, USER_ERRORS)
            with _status_file(run.settings, run.inference, folder, context.run_id, grid), blamed:
                PrototypeStrategy(run, folder, on_round).start(grid)
        except (SettingError, RosterError):
            folder.discard_unless_begun()
            raise
        except RunError:
            if run.settings.report and (folder.path / "metrics.jsonl").exists():
                leave_report(folder.path)
            raise
        if run.settings.report:
            leave_report(folder.path)
    log.info("results: %s", folder.path)
    return folder.path


@contextmanager
def _status_file(settings: Settings, rule: str, folder: RunFolder, flower_run: int, grid: Grid) -> Iterator[None]:
    """Keep status.json up to date while the run inside is on; docs/running.md has its keys.

    A process that was killed leaves it as it was, which `RunFolder.status` sees.
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
    # a resume that is refused leaves a folder as it was
    may_write = not settings.resume

    def write(**news: Any) -> None:
        # what still runs while Flower ends the process changes nothing any more
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
        # a signal, or in a deployment Flower's word that the run was stopped
        stop()
        raise
    finally:
        folder.listeners.remove(on_line)
    write(state="completed")
