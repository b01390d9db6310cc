"""The Flower ServerApp: reads the settings, opens the run's folder, runs the strategy and keeps status.json up to
date."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protosphere.core.settings import refuse_relative_paths
from protosphere.core.startup import end_at_once
from protosphere.server_app.callbacks import OnRound
from protosphere.server_app.opening import open_folder
from protosphere.server_app.status import USER_ERRORS, record_run
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import read_settings, refuse_foreign

# these mark our lines in Flower's stream, and the line that says why a run failed
PREFIX, PREFIX_OF_ERRORS = "[protosphere] ", "[protosphere error] "

app = ServerApp()
end_at_once()
log = logging.getLogger("protosphere")


class Console(logging.Handler):
    """Passes each line of the run to `show`, whose caller gets errors as exceptions. Without `show`, it prints the line
    to the current stdout, because Flower redirects stdout into the run's stream."""

    def __init__(self, show: Callable[[str], None] | None = None):
        super().__init__()
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        # some text comes from clients and must not look like a line of ours
        line = " ".join(record.getMessage().splitlines())
        failed = record.levelno >= logging.ERROR
        if self.show is None:
            sys.stdout.write(f"{PREFIX_OF_ERRORS if failed else PREFIX}{line}\n")
            sys.stdout.flush()
        elif not failed:
            self.show(line)


@contextmanager
def said(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Inside, the run's lines go to `show`, or without one to the listener that is already there. A run that was
    started by another run does not send its lines to that one."""
    outer = [handler for handler in log.handlers if isinstance(handler, Console)]
    if outer and show is None:
        yield
        return
    console = Console(show)
    level, propagate = log.level, log.propagate
    for handler in outer:
        log.removeHandler(handler)
    log.addHandler(console)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(console)
        for handler in outer:
            log.addHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run once, from settings to summary.

    Raises:
        SettingError, RosterError, RunError: after its sentence was printed to the stream; the run then counts as
            failed.
    """
    run(grid, context)


def run(
    grid: Grid,
    context: Context,
    opened: Callable[[Path], None] = lambda folder: None,
    on_round: OnRound | None = None,
) -> Path:
    """`main` for a run in one process.

    Args:
        opened: called with the run's folder as soon as it exists.
        on_round: called with the line of every round after its checkpoint is written; returning False ends the run.

    Returns:
        The run's folder.
    """
    with said():
        try:
            refuse_foreign(context.run_config)
            run = read_settings(context.run_config)
            refuse_relative_paths(run.settings)
            folder = open_folder(run, context.run_config)
            with folder.lock():
                log.info("results: %s", folder.path)
                opened(folder.path)
                with record_run(run, folder, context.run_id, grid):
                    PrototypeStrategy(run, folder, on_round).start(grid)
            return folder.path
        except USER_ERRORS as error:
            log.error("%s", error)
            raise
