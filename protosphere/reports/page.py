"""The elements of a page, which report_template.py turns into one self-contained HTML file.

Every string that is no `Markup` is escaped when it is inserted.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jinja2 import Environment
from markupsafe import Markup

from protosphere.core.files import refuse_link, replacing
from protosphere.core.text import one_line
from protosphere.reports.report_template import TEMPLATE

if TYPE_CHECKING:
    from protosphere.reports.canvas import Plot

PICTURES = "pictures"  # folder of a run's or comparison's plots
MISSING = "–"  # shown for a missing value


@dataclass(frozen=True)
class Table:
    """A table. The columns `words` are text, aligned left; all others are numbers, aligned right."""

    kind: ClassVar[str] = "table"
    head: Sequence[object]
    rows: Sequence[Sequence[object]]
    caption: object = ""
    words: Sequence[int] = (0,)


@dataclass(frozen=True)
class Image:
    """A plot with its texts, and links to its files."""

    kind: ClassVar[str] = "image"
    plot: "Plot"
    svg: str
    folder: str = PICTURES

    @property
    def base64(self) -> str:
        return base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Gallery:
    """Images side by side if there is room."""

    kind: ClassVar[str] = "gallery"
    parts: Sequence[Any]


@dataclass(frozen=True)
class Items:
    """A list."""

    kind: ClassVar[str] = "list"
    items: Sequence[object]


@dataclass(frozen=True)
class Details:
    """A collapsible section, which is expanded in print."""

    kind: ClassVar[str] = "details"
    title: str
    parts: Sequence[Any]


Part = Table | Image | Gallery | Items | Details | str


@dataclass(frozen=True)
class Page:
    """A page: a title, a sentence with the conclusion, one that describes the run, and sections.

    Attributes:
        cards: the main results: name, value, and a remark.
    """

    title: str
    conclusion: str
    lead: str
    sections: Sequence[tuple[str, Sequence[Part]]]
    cards: Sequence[tuple[object, object, object]] = ()
    notes: Sequence[str] = ()
    foot: str = ""

    def html(self) -> str:
        """The whole HTML file."""
        return _environment.from_string(TEMPLATE).render(vars(self))


def images(plots: Iterable["Plot"]) -> list[Image]:
    """Plots with their SVG, which takes a while to draw."""
    from protosphere.reports import canvas

    return [Image(plot, canvas.svg(plot)) for plot in plots]


def code(text: object) -> Markup:
    """Text in a monospaced font."""
    return Markup("<code>{}</code>").format(one_line(str(text), 500))


def write(path: Path, content: str) -> Path:
    """Write a file completely or not at all.

    Raises:
        OSError: it cannot be written; the previous file is unchanged.
    """
    with replacing(path) as temporary:
        temporary.write_text(content, "utf-8")
    return path


def write_images(folder: Path, drawn: Sequence[Image]) -> None:
    """Write the files of all plots of a run or comparison, replacing the previous ones.

    Raises:
        SettingError: their folder is a link.
        OSError: they cannot be written.
    """
    place = folder / PICTURES
    refuse_link(place)
    place.mkdir(exist_ok=True)
    names = {image.plot.name for image in drawn}
    for old in (*place.glob("*.svg"), *place.glob("*.csv")):
        if old.stem not in names:
            old.unlink()
    # temporary files of a killed process
    for temporary in place.glob(".*.tmp"):
        temporary.unlink()
    for image in drawn:
        write(place / f"{image.plot.name}.svg", image.svg)
        write(place / f"{image.plot.name}.csv", image.plot.csv)


def html(value: object) -> Markup:
    """Any value as markup: `Markup` unchanged, None as a dash, all else escaped and without control characters."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(one_line(MISSING if value is None else str(value))))


_environment = Environment(autoescape=True, finalize=html, trim_blocks=True, lstrip_blocks=True)
