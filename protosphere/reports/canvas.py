"""What every picture of a report shares: size, fonts, colours for light and dark, and the way to SVG.

    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        axes.plot(rounds, accuracy, color=canvas.COLOURS[0])
        svg = canvas.svg(drawn)

The drawing is light, for paper and for programs that know no CSS; a style sheet inside it makes it dark where a browser
prefers that. Text stays text. The same figure gives the same bytes.
"""

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

POINTS = 72  # of an inch, in which SVG measures
HALF = (5.7, 3.6)  # inches: half of the page's width, where letters are as large as the page's
WHOLE = (11.6, 3.8)

INK, SOFT, GRID = "#1c1e21", "#5a6068", "#d9dce1"
GROUND = "#ffffff"
# Okabe and Ito's colours, the lighter ones a little darker for a white ground, each with what it is on a dark one
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b5548a", "#b87a00", "#3d93c9", "#7a7f87")
ON_DARK = {
    INK: "#e8eaed",
    SOFT: "#a7adb5",
    GRID: "#363b42",
    GROUND: "#15171a",
    "#0072b2": "#4fa8e0",
    "#d55e00": "#f5843c",
    "#00875f": "#2fbf93",
    "#b5548a": "#dd8fba",
    "#b87a00": "#edb13c",
    "#3d93c9": "#8fd0f7",
    "#7a7f87": "#b4b9c0",
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
COLOUR_MAP = "viridis"
MOST_NAMED = 32  # classes, or clients, that have their names along an axis

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
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    # a class may be called "$x$"
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "protosphere",
    "axes.formatter.useoffset": False,
}


# of `as_figures`: the figures so far, and of which class they are
_taken: ContextVar["tuple[list[Figure], type[Figure]] | None"] = ContextVar("figures", default=None)


@contextmanager
def as_figures(kind: "type[Figure]") -> "Iterator[list[Figure]]":
    """While inside, what is drawn is of the class `kind`, and put into this list in place of being written as SVG."""
    figures: list[Figure] = []
    token = _taken.set((figures, kind))
    try:
        yield figures
    finally:
        _taken.reset(token)


@contextmanager
def figure(size: tuple[float, float] = HALF) -> "Iterator[Figure]":
    """An empty figure of so many inches in the page's style, which holds while inside."""
    # matplotlib takes a second to import and, once a machine, several to look for fonts, which it says on the log
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    taken = _taken.get()
    with rc_context(STYLE), warnings.catch_warnings():
        # names may be in letters that only the browser's fonts have
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield (taken[1] if taken else Figure)(figsize=size, layout="constrained")


def number_cells(axes: "Axes", texts: Mapping[tuple[int, int], str], shades: Any, size: float = 8) -> None:
    """Words into cells (row, column) of a map in `COLOUR_MAP`, where `shades` is each cell's place on it, in [0, 1]."""
    for row, column in texts:
        # of its own colour: it must not turn with the reader's colour scheme, since the cell does not
        colour = "#fdfdfd" if shades[row, column] < 0.6 else "#101010"
        axes.text(column, row, texts[row, column], ha="center", va="center", fontsize=size, color=colour)


def square(axes: "Axes", cells: Any, names: Sequence[str], label: str, most: float) -> "AxesImage":
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


def svg(drawn: "Figure") -> str:
    """The figure as an SVG file's text; inside `figure`. Nothing is written inside `as_figures`."""
    if (taken := _taken.get()) is not None:
        taken[0].append(drawn)
        return ""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # savefig would lay it out by a whole drawing that it throws away
    FigureCanvasSVG(drawn)
    drawn.set_dpi(POINTS)
    engine = drawn.get_layout_engine()
    if engine is not None and drawn.axes:
        engine.execute(drawn)
    drawn.set_layout_engine("none")
    stream = io.StringIO()
    drawn.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = stream.getvalue()
    # without the document type, which browsers and editors need not look up
    text = re.sub(r"<!DOCTYPE.*?>\s*", "", text, flags=re.DOTALL)
    return text.replace("<defs>", f"<style>{_dark()}</style>\n <defs>", 1)


def png(drawn: "Figure") -> bytes:
    """The figure as a PNG file on a white ground; inside `figure`."""
    stream = io.BytesIO()
    drawn.savefig(stream, format="png", dpi=150, facecolor=GROUND, metadata={"Software": None})
    return stream.getvalue()


def _dark() -> str:
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme:dark){{{rules}}}"
