"""Shared by all plots: size, fonts, colours and texts."""

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from protosphere.core.errors import SettingError
from protosphere.reports.frames import as_csv

HALF = (5.7, 3.6)  # inches: half of the page's width, so that text has the page's size
WHOLE = (11.6, 3.8)

INK, SOFT, GRID, GROUND = "#1c1e21", "#5a6068", "#d9dce1", "#ffffff"
# the colours of Okabe and Ito, with the lighter ones darkened for a white background
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b5548a", "#b87a00", "#3d93c9", "#7a7f87")
DASHED, DOTTED = (0, (4, 1.5)), (0, (1.5, 1.5))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
COLOUR_MAP = "viridis"
MOST_NAMED = 32  # most classes, or clients, with names along an axis
FEW_POINTS = 30  # most points of a curve that are marked

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    # matplotlib uses the first font for measuring; the rest are for browsers
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica Neue", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.8,
    "ytick.labelsize": 8.8,
    "legend.fontsize": 8.8,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "figure.facecolor": GROUND,
    "axes.facecolor": "none",
    "savefig.facecolor": GROUND,
    # a class may be named "$x$"
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "protosphere",
    "axes.formatter.useoffset": False,
}


class NothingToPlotError(SettingError):
    """A run or comparison has no data for a plot; the sentence says why."""


class Plot(Figure):
    """A plot of a run or a comparison, as a matplotlib figure.

    A notebook displays it; you can change its `axes`, and `savefig` writes any format of matplotlib.

    >>> plot = run.plot("accuracy-over-rounds")
    >>> plot.savefig(run.folder / "accuracy.pdf")
    >>> plot.numbers.to_csv(run.folder / "accuracy.csv")

    Attributes:
        name: of its files, as in a report's folder `pictures`.
        title, caption: the heading and the caption in a report.
        numbers: the plotted data, as a frame; accuracies in percent.
        wide: whether it takes the full width of a report.
    """

    name = title = caption = ""
    wide = False

    def describe(self, name: str, caption: str, numbers: pd.DataFrame, wide: bool = False, title: str = "") -> "Plot":
        """Set its texts and numbers; without a title, the name becomes the title."""
        self.name, self.title, self.caption = name, title or name.replace("-", " ").capitalize(), caption
        self.numbers, self.wide = numbers, wide
        return self

    @property
    def csv(self) -> str:
        """Its numbers as CSV."""
        return as_csv(self.numbers)

    @cached_property
    def svg(self) -> str:
        """Its SVG text, drawn once."""
        stream = io.StringIO()
        # without the time, so that equal figures give equal bytes
        self.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        # without the document type, which browsers and editors do not need
        return re.sub(r"<!DOCTYPE.*?>\s*", "", stream.getvalue(), flags=re.DOTALL)

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure to a file, as matplotlib does, in the style of the report."""
        with style():
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=150)
        return stream.getvalue()


@contextmanager
def figure(size: tuple[float, float] = HALF) -> Iterator[Plot]:
    """An empty plot of this size in inches; the page's style applies while inside."""
    # on first use, matplotlib searches for fonts for seconds and logs a message
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with style():
        yield Plot(figsize=size, layout="constrained")


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib has the page's style."""
    with rc_context(STYLE), warnings.catch_warnings():
        # names may need fonts that only browsers have
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


# --- parts of plots ---------------------------------------------------------------------------------------------


def number_cells(axes: Axes, texts: Mapping[tuple[int, int], str], shades: Any, size: float = 8) -> None:
    """Write text into the cells (row, column) of a map in `COLOUR_MAP`; `shades` is each cell's position in it, in [0,
    1]."""
    for row, column in texts:
        colour = "#fdfdfd" if shades[row, column] < 0.6 else "#101010"
        axes.text(column, row, texts[row, column], ha="center", va="center", fontsize=size, color=colour)


def colour_bar(image: Any, label: str, **look: Any) -> Any:
    """A map's colour bar."""
    bar = image.axes.figure.colorbar(image, ax=image.axes, **look)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return bar


def dots(points: Sequence[Any]) -> str:
    """The marker of a curve; none if there are many points."""
    return "o" if len(points) <= FEW_POINTS else ""


def plain_numbers(axis: Any) -> None:
    """Print 10 and 100 instead of powers, also on a log scale."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def whole_rounds(axes: Axes) -> None:
    """Use whole numbers along the lower axis."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
