"""What a page is put together from: parts, which report_template.py turns into one HTML file that needs nothing else.

Every string that is no `Markup` is escaped on its way in.
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

PICTURES = "pictures"  # folder of a run's or a comparison's plots
MISSING = "–"  # in place of a value that there is not


@dataclass(frozen=True)
class Table:
    """A table. The columns `words` stand on the left, all others are numbers, on the right."""

    kind: ClassVar[str] = "table"
    head: Sequence[object]
    rows: Sequence[Sequence[object]]
    caption: object = ""
    words: Sequence[int] = (0,)


@dataclass(frozen=True)
class Image:
    """A plot with its words, and links to its files."""

    kind: ClassVar[str] = "image"
    plot: "Plot"
    svg: str
    folder: str = PICTURES

    @property
    def base64(self) -> str:
        return base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Gallery:
    """Images side by side where there is room."""

    kind: ClassVar[str] = "gallery"
    parts: Sequence[Any]


@dataclass(frozen=True)
class Items:
    """A list."""

    kind: ClassVar[str] = "list"
    items: Sequence[object]


@dataclass(frozen=True)
class Details:
    """What is shown when it is asked for; and on paper."""

    kind: ClassVar[str] = "details"
    title: str
    parts: Sequence[Any]


Part = Table | Image | Gallery | Items | Details | str


@dataclass(frozen=True)
class Page:
    """A page: a title, a sentence that says what came out, one that says of what, and sections of parts.

    Attributes:
        cards: the figures to be seen first: what, how much, and a remark.
    """

    title: str
    conclusion: str
    lead: str
    sections: Sequence[tuple[str, Sequence[Part]]]
    cards: Sequence[tuple[object, object, object]] = ()
    notes: Sequence[str] = ()
    foot: str = ""

    def html(self) -> str:
        """The whole file."""
        return _environment.from_string(TEMPLATE).render(vars(self))


def images(plots: Iterable["Plot"]) -> list[Image]:
    """Plots with their SVG, which takes a while to draw."""
    from protosphere.reports import canvas

    return [Image(plot, canvas.svg(plot)) for plot in plots]


def code(text: object) -> Markup:
    """In the letters of code."""
    return Markup("<code>{}</code>").format(one_line(str(text), 500))


def write(path: Path, content: str) -> Path:
    """Write a file whole or not at all.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    with replacing(path) as temporary:
        temporary.write_text(content, "utf-8")
    return path


def write_images(folder: Path, drawn: Sequence[Image]) -> None:
    """Write the files of all plots of a run or a comparison, in place of those that were there.

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
    # what a killed process has left half-written
    for temporary in place.glob(".*.tmp"):
        temporary.unlink()
    for image in drawn:
        write(place / f"{image.plot.name}.svg", image.svg)
        write(place / f"{image.plot.name}.csv", image.plot.csv)


def html(value: object) -> Markup:
    """Any value as markup: `Markup` as it is, None as a dash, all else escaped and without control characters."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(one_line(MISSING if value is None else str(value))))


_environment = Environment(autoescape=True, finalize=html, trim_blocks=True, lstrip_blocks=True)
