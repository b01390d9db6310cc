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
class Gallery:
    """Plots side by side if there is room, wide ones last."""

    kind: ClassVar[str] = "gallery"
    plots: Sequence["Plot"]


@dataclass(frozen=True)
class Details:
    """A collapsible section, which is expanded in print."""

    kind: ClassVar[str] = "details"
    title: str
    parts: Sequence[Any]


Part = Table | Gallery | Details | str


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


def write_plots(folder: Path, plots: Iterable["Plot"]) -> None:
    """Write the SVG and CSV files of all plots of a run or comparison, replacing the previous ones.

    Raises:
        SettingError: their folder is a link.
        OSError: they cannot be written.
    """
    place = folder / PICTURES
    refuse_link(place)
    place.mkdir(exist_ok=True)
    # also the temporary files of a killed process
    for old in (*place.glob("*.svg"), *place.glob("*.csv"), *place.glob(".*.tmp")):
        old.unlink()
    for plot in plots:
        write(place / f"{plot.name}.svg", plot.svg)
        write(place / f"{plot.name}.csv", plot.csv)


def html(value: object) -> Markup:
    """Any value as markup: `Markup` unchanged, None as a dash, all else escaped and without control characters."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(one_line(MISSING if value is None else str(value))))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_environment = Environment(autoescape=True, finalize=html, trim_blocks=True, lstrip_blocks=True)
_environment.filters["base64"] = _base64
