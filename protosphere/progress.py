"""How far a run is, while Python waits for it: rich's bar on a terminal, a bar of its own in a notebook's cell, else a
line a round through `logging`."""

import logging
import sys
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

from protosphere.core.plugins import stem
from protosphere.core.text import duration
from protosphere.data.domains import short_name
from protosphere.record.folder import RunFolder
from protosphere.runs.display import Display

WARNING = "warning: "
# not below "protosphere", whose lines are kept from other handlers while a run is on
LOGGER = "protosphere-progress"


class Progress:
    """Shows a run's rounds, and passes its warnings on.

    Args:
        quiet: show nothing at all.
    """

    def __init__(self, quiet: bool):
        self._quiet = quiet
        self._display = None if quiet or not sys.stdout.isatty() else Display()
        self._cell = None if quiet or not _in_notebook() else _Cell()
        self._log = None if quiet or self._display or self._cell else _Log()

    def __enter__(self) -> "Progress":
        if self._display is not None:
            self._display.__enter__()
            self._display.stage("reading settings and data")
        if self._log is not None:
            self._log.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.__exit__(kind, error, trace)
        if self._cell is not None:
            self._cell.end(kind is None)
        if self._log is not None:
            self._log.end()

    def opened(self, folder: Path) -> None:
        """The run has a folder."""
        if self._display is not None:
            self._display.stage("waiting for the clients")
            self._display.follow(folder)

    def note(self, message: str) -> None:
        """What was chosen for what nobody named."""
        if self._display is not None:
            self._display.line(message)
        if self._log is not None:
            self._log.line(message)

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
        if self._log is not None:
            self._log.line(_round_words(figures, rounds))

    def ended(self, folder: Path) -> None:
        """The run has come to its end."""
        if self._display is not None:
            self._display.line(_headline_words(folder))
        if self._log is not None:
            self._log.line(_headline_words(folder))


class _Log:
    """Lines of a logger. Where nobody has said what becomes of such lines, they go to stderr."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._handler: logging.Handler | None = None
        self._level = self._logger.level

    def begin(self) -> None:
        if not self._logger.hasHandlers():
            self._handler = logging.StreamHandler(sys.stderr)
            self._logger.addHandler(self._handler)
            self._logger.setLevel(logging.INFO)

    def line(self, message: str) -> None:
        self._logger.info(message)

    def end(self) -> None:
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._logger.setLevel(self._level)
            self._handler = None


def _round_words(figures: Mapping[str, Any], rounds: int) -> str:
    """`round 3/20: 88.4 %, loss 0.412, 1.2 s`; what was not measured is left out."""
    parts = []
    accuracy, loss, seconds = (figures.get(name) for name in ("accuracy", "loss", "seconds"))
    # not a number where nothing was measured
    if accuracy is not None and accuracy == accuracy:
        parts.append(f"{100 * accuracy:.1f} %")
    if loss is not None and loss == loss:
        parts.append(f"loss {loss:.3g}")
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    done = f"round {figures['round']}/{rounds}"
    return f"{done}: {', '.join(parts)}" if parts else done


def _headline_words(folder: Path) -> str:
    """The outcome in a line, as summary.json has it."""
    summary = RunFolder(folder).summary()
    headline = summary["headline"]
    accuracy, number = headline.get("accuracy"), headline.get("round")
    what = f"{stem(summary['strategy'])} on {short_name(summary['dataset'])}"
    if accuracy is None:
        return f"{what}: no test accuracy was measured; results: {folder}"
    where = "" if number is None else f" after round {number}"
    return (
        f"{what}: {100 * accuracy:.1f} % test accuracy by {headline['rule']}, {headline['figure']}{where}, "
        f"{headline['clients']} clients; results: {folder}"
    )


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
        measured = f", {100 * accuracy:.1f} %" if accuracy == accuracy else ""
        self._text = f"round {done} of {rounds}{measured}, {duration(self._seconds)}"
        bar = f'<progress value="{done}" max="{rounds}" style="width:16em;vertical-align:middle"></progress>'
        self._handle.update(self._html(f"{bar} <span>{escape(self._text)}</span>"))

    def end(self, well: bool) -> None:
        text = self._text if well else f"cut: {self._text}"
        self._handle.update(self._html(f"<span>{escape(text)}</span>"))


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter's shows what we display."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")
