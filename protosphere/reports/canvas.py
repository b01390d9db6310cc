"""What every plot shares: size, fonts, colours, and the way to a file.

    with canvas.figure() as plot:
        axes = plot.add_subplot()
        axes.plot(rounds, accuracy, color=canvas.COLOURS[0])
    plot.describe("accuracy", "Accuracy", "It rises to 94 %.", "Over rounds.", frame)

The same figure gives the same bytes. Text stays text.
"""

import io
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, NullFormatter

from protosphere.core.errors import SettingError
from protosphere.core.settings import shown
from protosphere.reports.csv_files import as_csv

POINTS = 72  # of an inch, in which SVG measures
DOTS = 200  # an inch of a PNG
HALF = (5.7, 3.6)  # inches: half of the page's width, where letters are as large as the page's
WHOLE = (11.6, 3.8)
FORMATS = ("svg", "pdf", "png", "csv")

INK, SOFT, GRID, GROUND = "#1c1e21", "#5a6068", "#d9dce1", "#ffffff"
# Okabe and Ito's colours, the lighter ones a little darker for a white ground
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b5548a", "#b87a00", "#3d93c9", "#7a7f87")
DASHED, DOTTED = (0, (4, 1.5)), (0, (1.5, 1.5))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
COLOUR_MAP = "viridis"
MOST_NAMED = 32  # classes, or clients, that have their names along an axis
FEW_POINTS = 30  # up to which a curve shows its points

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    # the first is matplotlib's own, by which it measures; the rest are for browsers
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica Neue", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.8,
    "ytick.labelsize": 8.8,
    "legend.fontsize": 8.8,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
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
    # a class may be called "$x$"
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "protosphere",
    "axes.formatter.useoffset": False,
}


class NothingToPlotError(SettingError):
    """A run or a comparison has nothing of what a plot shows; the sentence says why."""


class Plot(Figure):
    """A plot of a run or a comparison: a figure of matplotlib's that nobody else draws into.

    A notebook shows it; `axes` are there to be changed, and `savefig` writes what matplotlib can.

    Attributes:
        name: of its files, as in a report's folder `pictures`.
        title, caption: what a report has above and under it.
        alt: what it shows, in words.
        numbers: what it shows, as a frame; accuracies in percent.
        wide: whether a report gives it the whole width.
    """

    name = title = caption = alt = ""
    wide = False

    def describe(
        self, name: str, title: str, alt: str, caption: str, numbers: pd.DataFrame, wide: bool = False
    ) -> "Plot":
        """Give it its words and numbers."""
        self.name, self.title, self.alt, self.caption = name, title, alt, caption
        self.numbers, self.wide = numbers, wide
        return self

    @property
    def csv(self) -> str:
        """Its numbers as a file."""
        rows = self.numbers.astype(object).where(self.numbers.notna(), None)
        return as_csv([list(rows.columns), *rows.itertuples(index=False, name=None)])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file: the figure as .pdf, .png or .svg, or its numbers as .csv.

        >>> run.plot("accuracy-over-rounds").save(run.folder / "accuracy.csv").name
        'accuracy.csv'

        Returns:
            The path.

        Raises:
            SettingError: the name ends otherwise, or the file cannot be written.
        """
        target = Path(path).expanduser()
        ending = target.suffix.removeprefix(".").lower()
        if ending not in FORMATS:
            endings = ", ".join(FORMATS)
            raise SettingError(
                f"the file {shown(str(path))} cannot be written: its name ends in another than {endings}."
            )
        try:
            if ending in ("svg", "csv"):
                target.write_text(svg(self) if ending == "svg" else self.csv, "utf-8")
            else:
                # without the time, so that the same figure gives the same file
                times = {"CreationDate": None} if ending == "pdf" else {"Software": None}
                with rc_context(STYLE):
                    self.savefig(target, dpi=DOTS, metadata=times)
        except OSError as error:
            raise SettingError(
                f"{target} cannot be written ({error.strerror or error}); give an existing folder that you may write "
                "to."
            ) from None
        return target

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(stream, format="png", dpi=150, metadata={"Software": None})
        return stream.getvalue()


@contextmanager
def figure(size: tuple[float, float] = HALF) -> Iterator[Plot]:
    """An empty plot of so many inches in the page's style, which holds while inside."""
    # once a machine matplotlib takes seconds to look for fonts, which it says on the log
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with rc_context(STYLE), _any_letters():
        yield Plot(figsize=size, layout="constrained")


@contextmanager
def _any_letters() -> Iterator[None]:
    with warnings.catch_warnings():
        # names may be in letters that only the browser's fonts have
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def svg(plot: Figure) -> str:
    """A figure as an SVG file's text."""
    # savefig would lay it out by a whole drawing that it throws away
    FigureCanvasSVG(plot)
    plot.set_dpi(POINTS)
    stream = io.StringIO()
    with rc_context(STYLE), _any_letters():
        engine = plot.get_layout_engine()
        if engine is not None and plot.axes:
            engine.execute(plot)
        plot.set_layout_engine("none")
        plot.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    # without the document type, which browsers and editors need not look up
    return re.sub(r"<!DOCTYPE.*?>\s*", "", stream.getvalue(), flags=re.DOTALL)


# --- parts of plots ---------------------------------------------------------------------------------------------


def number_cells(axes: Axes, texts: Mapping[tuple[int, int], str], shades: Any, size: float = 8) -> None:
    """Words into cells (row, column) of a map in `COLOUR_MAP`, where `shades` is each cell's place on it, in [0, 1]."""
    for row, column in texts:
        colour = "#fdfdfd" if shades[row, column] < 0.6 else "#101010"
        axes.text(column, row, texts[row, column], ha="center", va="center", fontsize=size, color=colour)


def square(axes: Axes, cells: Any, names: Sequence[str], label: str, most: float) -> AxesImage:
    """A map of classes by classes, with names along its axes where there are few and a scale beside it."""
    image = axes.imshow(cells, vmin=0, vmax=most, interpolation="none", cmap=COLOUR_MAP)
    colour_bar(image, label, pad=0.02, fraction=0.046)
    if len(names) <= MOST_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    return image


def colour_bar(image: Any, label: str, **look: Any) -> Any:
    """The scale of a map beside it."""
    bar = image.axes.figure.colorbar(image, ax=image.axes, **look)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return bar


def dots(points: Sequence[Any]) -> str:
    """The marker of a curve: none where there are too many points to tell apart."""
    return "o" if len(points) <= FEW_POINTS else ""


def plain_numbers(axis: Any) -> None:
    """10 and 100 rather than powers, also where the scale is of orders."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def whole_rounds(axes: Axes, most: int = 8) -> None:
    """Whole numbers along the lower axis."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))
