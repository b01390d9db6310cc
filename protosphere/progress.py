"""Shows a run's progress: its lines and, on a terminal, a bar below them.

Neither torch nor a method is loaded here, so that the display starts before they are.
"""

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

WARNING = "warning: "
RESULTS = "results: "
STYLES = {
    rf"^{WARNING}.*": "yellow",
    r"^(round +\d+/\d+|final evaluation)": "cyan",
    r"(?<=: ) *\d+\.\d %": "bold",
}


class Display:
    """Prints a run's lines. On a terminal, a bar below them shows the current step, then the rounds.

    Args:
        say: prints a line if there is no bar.
        moves: whether a bar is allowed.
    """

    def __init__(self, say: Callable[[str], None] = print, moves: bool = True):
        console = Console(highlight=False)
        # do not let environment variables decide: a file gets the plain lines only
        self._moves = moves and sys.stdout.isatty() and not console.is_dumb_terminal
        self._bar = _Bar(console, disable=not self._moves)
        self._say = say
        self._folder: Path | None = None
        self._results = ""

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def folder(self) -> Path | None:
        """The run's folder; None before it exists, and after a run without a round has removed it."""
        return self._folder if self._folder is not None and self._folder.is_dir() else None

    def stage(self, message: str) -> None:
        """Show the current step, until a round is finished."""
        self._bar.stage = message

    def opened(self, folder: Path) -> None:
        """Use the run's folder, which shows the progress."""
        self._folder = folder
        self._bar.folder = folder
        self.stage("waiting for the clients")

    def line(self, message: str) -> None:
        """Print a line."""
        if message.startswith(RESULTS):
            # a run prints its folder first and last
            if message == self._results:
                return
            self._results = message
        if not self._moves:
            self._say(message)
            return
        text = Text(message)
        for pattern, style in STYLES.items():
            text.highlight_regex(pattern, style)
        self._bar.console.print(text, soft_wrap=True)


class _Bar(Progress):
    """Rich's bar; it reads the progress from the run's folder, whichever process writes there."""

    stage = ""
    folder: Path | None = None

    def __init__(self, console: Console, disable: bool):
        super().__init__(
            SpinnerColumn("line", style="cyan"),
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=8,
            # a round may take minutes, and the speed is the mean over all rounds so far
            speed_estimate_period=float("inf"),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
            disable=disable,
        )
        self.add_task("", total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn, several times per second."""
        status = self._status()
        done, rounds, latest = status.get("round", 0), status.get("rounds", 0), status.get("latest")
        text = self.stage
        if done:
            text = f"round {done}/{rounds}" + (f", {100 * latest['accuracy']:.1f} %" if latest else "")
        for task in self.tasks:
            self.update(task.id, description=text, completed=done, total=rounds if done else None)
        yield from super().get_renderables()

    def _status(self) -> dict[str, Any]:
        """The run's status; empty as long as there is none."""
        if self.folder is None:
            return {}
        try:
            # not through RunFolder, which loads torch
            status: dict[str, Any] = json.loads((self.folder / "status.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return status


def line_printer(quiet: bool) -> Callable[[str], None]:
    """The function that prints the lines of a run or comparison started from Python."""
    if quiet:
        return lambda line: None
    return partial(print, flush=True)
