"""What a run shows while it is on: its lines, and on a terminal, in colour, how far it is under them."""

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

STYLES = {
    r"^warning: .*": "yellow",
    r"^(round +\d+/\d+|final evaluation)": "cyan",
    r"(?<=: ) *\d+\.\d %": "bold",
}
BAR = 24  # columns


class Display:
    """Passes lines on. On a terminal a last line of its own moves from the start: what is being done, for how long;
    and as soon as the run's folder has a status, a bar."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        # not the console's own answer, which variables may change: a file gets the lines alone, letter by letter
        self._moves = sys.stdout.isatty() and not console.is_dumb_terminal
        self._began = time.monotonic()
        self._spinner = Spinner("line", style="cyan")
        self._stage = ""
        self._folder: Path | None = None
        self._rounds: list[tuple[int, float]] = []  # the last finished one, and when that was seen
        self._live = Live(
            console=console,
            get_renderable=self._row,
            refresh_per_second=8,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )

    def __enter__(self) -> "Display":
        if self._moves:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def stage(self, message: str) -> None:
        """Say what is being done."""
        self._stage = message

    def follow(self, folder: Path) -> None:
        """Look into the run's folder for how far it is."""
        self._folder = folder

    def line(self, message: str) -> None:
        """Say a line for good."""
        if not self._moves:
            typer.echo(message)
            return
        text = Text(message)
        for pattern, style in STYLES.items():
            text.highlight_regex(pattern, style)
        self._live.console.print(text, soft_wrap=True)

    def _row(self) -> Table:
        now = time.monotonic()
        row = Table.grid(padding=(0, 1))
        cells = [self._spinner, *self._progress(now), Text(_clock(now - self._began), "dim")]
        row.add_row(*cells)
        return row

    def _progress(self, now: float) -> "list[Text | ProgressBar]":
        """What is being done, until a round is finished: then the rounds."""
        status = self._status()
        done, rounds = status.get("round", 0), status.get("rounds", 0)
        if not done or not rounds:
            return [Text(self._stage)]
        if not self._rounds or self._rounds[-1][0] != done:
            self._rounds.append((done, now))
        text = f"round {done}/{rounds}"
        if latest := status.get("latest"):
            text += f", {100 * latest['accuracy']:.1f} %"
        (first, began), (last, latest) = self._rounds[0], self._rounds[-1]
        if last > first:
            seconds_left = (rounds - last) * (latest - began) / (last - first) - (now - latest)
            text += f", {_clock(max(0.0, seconds_left))} left"
        return [ProgressBar(rounds, done, width=BAR), Text(text)]

    def _status(self) -> dict[str, Any]:
        """Of the run; empty as long as there is none here."""
        if self._folder is None:
            return {}
        try:
            # not by RunFolder, which loads torch: something is to move before that
            status: dict[str, Any] = json.loads((self._folder / "status.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return status


def _clock(seconds: float) -> str:
    minutes, remainder = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{remainder:02}" if minutes >= 60 else f"{minutes}:{remainder:02}"
