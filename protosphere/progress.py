"""How far a run is, while Python waits for it: rich's bar on a terminal, a bar of its own in a notebook's cell."""

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from protosphere.cli.display import Display
from protosphere.core.text import duration
from protosphere.reports.page import element

WARNING = "warning: "


class Progress:
    """Shows a run's rounds, and passes its warnings on.

    Args:
        quiet: show nothing at all.
    """

    def __init__(self, quiet: bool):
        self._quiet = quiet
        self._display = None if quiet or not sys.stdout.isatty() else Display()
        self._cell = None if quiet or not _in_notebook() else _Cell()

    def __enter__(self) -> "Progress":
        if self._display is not None:
            self._display.__enter__()
            self._display.stage("reading settings and data")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.__exit__(kind, error, trace)
        if self._cell is not None:
            self._cell.end(kind is None)

    def opened(self, folder: Path) -> None:
        """The run has a folder."""
        if self._display is not None:
            self._display.stage("waiting for the clients")
            self._display.follow(folder)

    def line(self, message: str) -> None:
        """The run says something: warnings are for whoever called."""
        if self._quiet or not message.startswith(WARNING):
            return
        if self._display is not None:
            self._display.line(message)
        else:
            # from wherever somebody called `run`
            warnings.warn(message.removeprefix(WARNING), stacklevel=2)

    def round(self, figures: Mapping[str, Any], rounds: int) -> None:
        """A round is finished."""
        if self._cell is not None:
            self._cell.show(figures, rounds)


class _Cell:
    """A bar in the output of a notebook's cell. Rich's needs ipywidgets there, and is gone when a notebook is read
    without running it."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle = display(HTML("starting"), display_id=True)
        self._text = ""
        self._seconds = 0.0

    def show(self, figures: Mapping[str, Any], rounds: int) -> None:
        done, accuracy = figures["round"], figures["accuracy"]
        self._seconds += figures.get("seconds") or 0.0
        # not a number where nothing was measured
        measured = f", {100 * accuracy:.1f} % after round {figures['of_round']}" if accuracy == accuracy else ""
        self._text = f"round {done} of {rounds}{measured}, {duration(self._seconds)}"
        bar = element("progress", value=done, max=rounds, style="width:16em;vertical-align:middle")
        self._handle.update(self._html(f"{bar} {element('span', self._text)}"))

    def end(self, well: bool) -> None:
        self._handle.update(self._html(str(element("span", self._text if well else f"cut: {self._text}"))))


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter's shows what we display."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")
