"""The page that a report is: one HTML file that needs no network, no script and no other file, light and dark.

A report is put together from parts, each of which is `Html`; every other string is escaped on its way in:

    curves = canvas.svg(figure)                                   # canvas.py: matplotlib in the page's colours
    parts = [
        cards([("accuracy", "94.7 %", "selected in round 12")]),
        section("Accuracy", picture(curves, "Accuracy rises to 94 %", "Over rounds, mean and spread.")),
        section("Runs", table(["method", "accuracy"], [[link("FedProto", "fedproto/report.html"), "96.1"]])),
    ]
    write(folder / "report.html", page("FedProto on digits", parts, lead="10 clients, 20 rounds"))
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from protosphere.core.files import replacing
from protosphere.core.text import one_line

MOST_CHOICES = 50
MISSING = "–"  # in place of a value that there is not


class Html(str):
    """Markup that is safe to put into a page as it is."""

    __slots__ = ()


def html(value: object) -> Html:
    """Any value as markup: `Html` as it is, None as a dash, all else escaped and without control characters."""
    if isinstance(value, Html):
        return value
    return Html(escape(one_line(MISSING if value is None else str(value))))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """`<tag ...>content</tag>`; an attribute `class_` is written `class`, one that is None is left out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{written}>{''.join(map(html, content))}</{tag}>")


def section(title: str, *content: object) -> Html:
    """A part of the page under a heading."""
    return element("section", element("h2", title), *content)


def paragraph(*content: object, class_: str | None = None) -> Html:
    """A paragraph; of the class `note` it is set smaller."""
    return element("p", *content, class_=class_)


def link(text: object, address: str) -> Html:
    """A link to a file beside the page, by a relative path."""
    return element("a", text, href=address)


def cards(entries: Iterable[tuple[object, object, object]]) -> Html:
    """The figures to be seen first: what, how much, and a remark (or "")."""
    return element(
        "dl",
        *(
            element("div", element("dt", what), element("dd", element("strong", value), element("span", remark)))
            for what, value, remark in entries
        ),
        class_="cards",
    )


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    caption: str = "",
    words: Iterable[int] = (0,),
) -> Html:
    """A table that scrolls in itself where the screen is narrow; the first cell of a row is its heading.

    Args:
        words: the columns that hold words and stand on the left; all others are numbers, on the right.
    """
    left_columns = frozenset(words)

    def cell(tag: str, index: int, value: object, scope: str | None = None) -> Html:
        return element(tag, value, class_=None if index in left_columns else "number", scope=scope)

    header = element("thead", element("tr", *(cell("th", index, value, "col") for index, value in enumerate(head))))
    body = [
        element("tr", cell("th", 0, row[0], "row"), *(cell("td", i, value) for i, value in enumerate(row[1:], start=1)))
        for row in rows
    ]
    named = [element("caption", caption)] if caption else []
    table_element = element("table", *named, header, element("tbody", *body))
    # with a tab stop, so that the keyboard can scroll it
    return element("div", table_element, class_="wide", tabindex=0, role="region", aria_label=caption or "table")


def picture(svg: str, alt: str, caption: object = "", wide: bool = False, numbers: str = "") -> Html:
    """A drawing of canvas.svg inside the page, with the words for those who do not see it.

    Args:
        wide: across the page rather than half of it, in a gallery.
        numbers: where the file with its numbers lies, beside the page.
    """
    data = base64.b64encode(svg.encode()).decode()
    image = Html(f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(one_line(alt))}">')
    caption_parts = (caption, Html(" ") if caption else "", link("Numbers (CSV)", numbers)) if numbers else (caption,)
    below = [element("figcaption", *caption_parts)] if caption or numbers else []
    framed = element("div", image, class_="wide", tabindex=0, role="group", aria_label="picture")
    return element("figure", framed, *below, class_="whole" if wide else None)


def gallery(*pictures: object) -> Html:
    """Pictures side by side where there is room."""
    return element("div", *pictures, class_="gallery")


def choice(name: str, entries: Sequence[tuple[object, object]], title: str = "", wide: bool = True) -> Html:
    """One of several contents at a time, which the reader chooses; on paper the one that is chosen.

    Args:
        name: of the choice, which no other on the page has. entries: words and content of each, MOST_CHOICES at most.
        wide: across the page rather than half of it, in a gallery.
    """
    buttons = [
        Html(
            f'<input type="radio" name="{escape(name)}" id="{escape(name)}-{place}"{" checked" * (not place)}>'
            + element("label", label, for_=f"{name}-{place}")
        )
        for place, (label, _) in enumerate(entries)
    ]
    contents = element("div", *(element("div", content) for _, content in entries), class_="chosen")
    return element(
        "div",
        *buttons,
        contents,
        class_="choice whole" if wide else "choice",
        role="radiogroup",
        aria_label=title or name,
    )


def details(title: object, *content: object) -> Html:
    """What is shown when it is asked for; and on paper."""
    return element("details", element("summary", title), *content)


def page(title: str, parts: Iterable[object], lead: object = "", foot: object = "") -> str:
    """The whole file.

    Args:
        lead: the sentence under the title. foot: at the end, in small.
    """
    # the mark is drawn on the page itself, so that no browser asks for a file
    icon = '<link rel="icon" href="data:,">'
    body = element(
        "body",
        element("header", element("h1", title), paragraph(lead, class_="lead") if lead else ""),
        element("main", *parts),
        element("footer", foot) if foot else "",
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html(title)}</title>\n{icon}\n<style>{STYLE}{CHOSEN}</style>\n</head>\n{body}\n</html>\n"
    )


def write(path: Path, content: str) -> Path:
    """Write a file whole or not at all.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    with replacing(path) as temporary:
        temporary.write_text(content, "utf-8")
    return path


CHOSEN = (
    ",".join(f".choice>input:nth-of-type({n}):checked~.chosen>:nth-child({n})" for n in range(1, MOST_CHOICES + 1))
    + "{display:block}\n"
)
STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --raised: #f5f6f8; --ink: #1c1e21; --soft: #5a6068;
  --line: #d9dce1; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ground: #15171a; --raised: #1f2226; --ink: #e8eaed; --soft: #a7adb5;
  --line: #363b42; --accent: #66b7ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 76rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.3rem; margin: 3rem 0 .8rem; padding-top: .8rem; border-top: 1px solid var(--line); }
p { margin: .6rem 0; max-width: 46rem; }
a { color: var(--accent); }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .92em; }
.lead, .note, footer, caption, figcaption { color: var(--soft); }
.lead { font-size: 1.1rem; margin: .4rem 0 0; }
.note, footer, figcaption, caption { font-size: .9rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: .8rem; margin: 1.6rem 0; }
.cards > div { background: var(--raised); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; }
.cards dt { color: var(--soft); font-size: .9rem; }
.cards dd { margin: 0; }
.cards strong { display: block; font-size: 1.6rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.cards span { display: block; color: var(--soft); font-size: .85rem; line-height: 1.35; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .93rem; }
caption { text-align: left; padding-bottom: .4rem; max-width: calc(100vw - 2rem); }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; white-space: nowrap; }
tbody th { font-weight: 500; white-space: nowrap; }
th.number, td.number { text-align: right; padding-left: .8rem; white-space: nowrap; }
td { min-width: 3rem; overflow-wrap: break-word; }
td:not(.number) { min-width: 10rem; }
.gallery { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.6rem; }
.gallery > .whole { grid-column: 1 / -1; }
.gallery > * { min-width: 0; }
.gallery th.number, .gallery td.number { padding: .3rem .35rem; }
.gallery caption { max-width: min(100%, calc(100vw - 2rem)); }
figure { margin: .6rem 0; min-width: 0; }
figure img { display: block; width: 100%; height: auto; min-width: 23rem; }
.whole img { min-width: 44rem; }
figcaption { margin-top: .4rem; max-width: 46rem; }
.choice { position: relative; }
.choice > input { position: absolute; opacity: 0; }
.choice > label { display: inline-block; margin: 0 .3rem .4rem 0; padding: .25rem .8rem; border: 1px solid var(--line);
  border-radius: 1rem; font-size: .9rem; cursor: pointer; }
.choice > input:checked + label { background: var(--accent); border-color: var(--accent); color: var(--ground); }
.choice > input:focus-visible + label { outline: 2px solid var(--accent); outline-offset: 2px; }
.chosen > * { display: none; }
.rounds svg { display: block; width: 100%; height: auto; }
.rounds .choice > label { margin: 0 0 .3rem; padding: .1rem .4rem; border-radius: .2rem;
  min-width: 1.9rem; text-align: center; }
summary { cursor: pointer; color: var(--accent); margin: .6rem 0; }
@media (max-width: 60rem) { .gallery { grid-template-columns: minmax(0, 1fr); } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .wide { overflow: visible; }
  figure, .cards > div, tr { break-inside: avoid; } h2 { break-after: avoid; } figure img, .whole img { min-width: 0; }
  details > * { display: block; } details::details-content { content-visibility: visible; block-size: auto; } }
"""
