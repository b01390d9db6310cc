"""The page that a report is: one HTML file that needs no network and no other file, light and dark. Its script, where
it has charts, is its own; without scripts the pictures are there all the same.

A report is put together from parts, which the macros of `PARTS` make; every string that is no `Html` is escaped on its
way in:

    curves = canvas.svg(figure)                                   # canvas.py: matplotlib in the page's colours
    parts = [
        cards([("accuracy", "94.7 %", "selected in round 12")]),
        section("Accuracy", picture(curves, "Accuracy rises to 94 %", "Over rounds, mean and spread.")),
        section("Runs", table(["method", "accuracy"], [[link("FedProto", "fedproto/report.html"), "96.1"]])),
    ]
    write(folder / "report.html", page("FedProto on digits", parts, lead="10 clients, 20 rounds"))
"""

import base64
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup as Html

from protosphere.core.files import replacing
from protosphere.core.terms import NOTATION, TERMS
from protosphere.core.text import one_line
from protosphere.reports import chart_script

MOST_CHOICES = 50
MISSING = "–"  # in place of a value that there is not


def html(value: object) -> Html:
    """Any value as markup: `Html` as it is, None as a dash, all else escaped and without control characters."""
    if isinstance(value, Html):
        return value
    return Html(escape(one_line(MISSING if value is None else str(value))))


def term(name: str, text: str = "") -> Html:
    """A name, or other text for it, with what the glossary says of it as a tooltip; without where it has no entry."""
    known = TERMS.get(name)
    return html(text or name) if known is None else element("abbr", text or name, title=known.tooltip)


def term_list(names: Iterable[str]) -> Html:
    """What the glossary says of these, for those who cannot point at a word, to be opened by the reader."""
    entries: list[Html] = []
    for known in filter(None, map(TERMS.get, names)):
        formula = [element("dd", code(known.formula))] if known.formula else []
        entries += [element("dt", known.name), element("dd", known.plain), *formula]
    notation = (paragraph(text.replace("`", ""), class_="note") for text in NOTATION)
    return details("what these terms mean", element("dl", *entries, class_="terms"), *notation)


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
h3 { font-size: 1rem; margin: 0 0 .4rem; }
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
abbr { text-decoration: underline dotted; text-underline-offset: .2em; cursor: help; }
.terms dt { font-weight: 600; margin-top: .6rem; }
.terms dd { margin: 0; max-width: 46rem; }
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

# content is given by position, as much as there is; `class_` is written `class`
PARTS = """
{%- macro all(parts) %}{% for part in parts %}{{ part }}{% endfor %}{% endmacro %}

{%- macro attributes(values) %}
  {%- for name, value in values.items() %} {{ name.rstrip("_").replace("_", "-") }}="{{ value }}"{% endfor %}
{%- endmacro %}

{#- any element #}
{%- macro element(tag) %}<{{ tag }}{{ attributes(kwargs) }}>{{ all(varargs) }}</{{ tag }}>{% endmacro %}

{#- a part of the page under a heading #}
{%- macro section(title) %}<section><h2>{{ title }}</h2>{{ all(varargs) }}</section>{% endmacro %}

{#- of the class `note` it is set smaller #}
{%- macro paragraph() %}<p{{ attributes(kwargs) }}>{{ all(varargs) }}</p>{% endmacro %}

{#- in the letters of code #}
{%- macro code(text) %}<code>{{ text }}</code>{% endmacro %}

{#- to a file beside the page, by a relative path #}
{%- macro link(text, address) %}<a href="{{ address }}">{{ text }}</a>{% endmacro %}

{#- the figures to be seen first: what, how much, and a remark (or "") #}
{%- macro cards(entries) %}<dl class="cards">
  {%- for what, value, remark in entries -%}
    <div><dt>{{ what }}</dt><dd><strong>{{ value }}</strong><span>{{ remark }}</span></dd></div>
  {%- endfor %}</dl>
{%- endmacro %}

{#- It scrolls in itself where the screen is narrow, by a tab stop also with the keyboard; the first cell of a row is
    its heading. The columns `words` stand on the left, all others are numbers, on the right. #}
{%- macro table(head, rows, caption="", words=(0,)) -%}
  <div class="wide" tabindex="0" role="region" aria-label="{{ caption or "table" }}"><table>
  {%- if caption %}<caption>{{ caption }}</caption>{% endif %}<thead><tr>
  {%- for value in head %}<th{{ side(loop, words) }} scope="col">{{ value }}</th>{% endfor %}</tr></thead><tbody>
  {%- for row in rows %}<tr>
    {%- for value in row %}
      {%- if loop.first %}<th{{ side(loop, words) }} scope="row">{{ value }}</th>
      {%- else %}<td{{ side(loop, words) }}>{{ value }}</td>{% endif %}
    {%- endfor %}</tr>
  {%- endfor %}</tbody></table></div>
{%- endmacro %}
{%- macro side(loop, words) %}{% if loop.index0 not in words %} class="number"{% endif %}{% endmacro %}

{#- A drawing of canvas.svg with the words for those who do not see it; `wide`: across the page rather than half of it,
    in a gallery; `downloads`: (words, address) of each; `name`: its place in the page, `title`: its heading; `charts`:
    of charts.as_json, what the page's script draws in its place. #}
{%- macro picture(svg, alt, caption="", wide=False, downloads=(), name="", title="", charts="") -%}
  <figure{% if name %} id="{{ name }}"{% endif %}{% if wide %} class="whole"{% endif %}>
  {%- if title %}<h3>{{ title }}</h3>{% endif %}
  {%- if charts %}<script type="application/json" class="charts">{{ charts }}</script>{% endif %}
  {#- #}<div class="wide" tabindex="0" role="group" aria-label="picture">{# -#}
  <img src="data:image/svg+xml;base64,{{ svg | base64 }}" alt="{{ alt }}"></div>
  {%- if caption or downloads %}<figcaption>{{ caption }}
    {%- for words, address in downloads %} {{ element("a", words, href=address, download=name ~ "." ~ words.lower()) }}
    {%- endfor %}</figcaption>
  {%- endif %}</figure>
{%- endmacro %}

{#- pictures side by side where there is room #}
{%- macro gallery() %}<div class="gallery">{{ all(varargs) }}</div>{% endmacro %}

{#- One of several contents at a time, which the reader chooses; on paper the one that is chosen. `name`: of the choice,
    which no other on the page has; `entries`: words and content of each, MOST_CHOICES at most. #}
{%- macro choice(name, entries, title="", wide=True) -%}
  <div class="choice{% if wide %} whole{% endif %}" role="radiogroup" aria-label="{{ title or name }}">
  {%- for label, _ in entries -%}
    <input type="radio" name="{{ name }}" id="{{ name }}-{{ loop.index0 }}"{% if loop.first %} checked{% endif %}>{# -#}
    <label for="{{ name }}-{{ loop.index0 }}">{{ label }}</label>
  {%- endfor %}<div class="chosen">{% for _, content in entries %}<div>{{ content }}</div>{% endfor %}</div></div>
{%- endmacro %}

{#- what is shown when it is asked for; and on paper #}
{%- macro details(title) %}<details><summary>{{ title }}</summary>{{ all(varargs) }}</details>{% endmacro %}

{#- The whole file; `lead`: the sentence under the title, `foot`: at the end, in small. The mark is drawn on the page
    itself, so that no browser asks for a file. #}
{%- macro page(title, parts, lead="", foot="") -%}
{%- set content = all(parts) -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>{{ style }}</style>
</head>
<body><header><h1>{{ title }}</h1>{% if lead %}<p class="lead">{{ lead }}</p>{% endif %}</header>{# -#}
<main>{{ content }}</main>{% if foot %}<footer>{{ foot }}</footer>{% endif %}{# -#}
{% if '<script type="application/json"' in content %}<script>{{ script }}</script>{% endif %}</body>
</html>
{% endmacro %}
"""
_environment = Environment(autoescape=True, finalize=html, keep_trailing_newline=True)
_environment.filters["base64"] = lambda svg: base64.b64encode(svg.encode()).decode()
_globals = {"style": Html(STYLE + CHOSEN + chart_script.STYLE), "script": Html(chart_script.SCRIPT)}
_parts: Any = _environment.from_string(PARTS, globals=_globals).module
_Part = Callable[..., Html]
element: _Part = _parts.element
section: _Part = _parts.section
paragraph: _Part = _parts.paragraph
code: _Part = _parts.code
link: _Part = _parts.link
cards: _Part = _parts.cards
table: _Part = _parts.table
picture: _Part = _parts.picture
gallery: _Part = _parts.gallery
choice: _Part = _parts.choice
details: _Part = _parts.details
page: _Part = _parts.page
