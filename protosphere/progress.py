"""Prints the lines of a run that is started here."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

RESULTS = "results: "


class RunLines:
    """Prints a run's lines, and knows its folder.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], object] = print):
        self._say = say
        self._folder: Path | None = None
        self._results = ""

    @property
    def folder(self) -> Path | None:
        """The run's folder; None before it exists, and after a run without a round has removed it."""
        return self._folder if self._folder is not None and self._folder.is_dir() else None

    def opened(self, folder: Path) -> None:
        """Use this folder as the run's."""
        self._folder = folder

    def line(self, message: str) -> None:
        """Print a line. A run prints its folder first and last; the second time it is left out."""
        if message.startswith(RESULTS):
            if message == self._results:
                return
            self._results = message
        self._say(message)


def line_printer(quiet: bool) -> Callable[[str], None]:
    """The function that prints the lines of a run or comparison started from Python."""
    if quiet:
        return lambda line: None
    return partial(print, flush=True)
