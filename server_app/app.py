"""The Flower ServerApp: read the settings, open the run's folder, let the strategy run, keep status.json meanwhile."""

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
    """While inside, the run's lines go to `show`, or, without one, to whoever listens outside already. Of a run that
    another one has started the other hears nothing."""
    outer = [handler for handler in log.handlers if isinstance(handler, Console)]
    if outer and show is None:
        yield
        return
    console = Console(show)
    before = log.level, log.propagate
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
        with record_run(run, folder, context.run_id, grid):
            PrototypeStrategy(run, folder, on_round).start(grid)
    log.info("results: %s", folder.path)
    return folder.path
