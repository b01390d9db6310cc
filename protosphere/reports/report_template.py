"""The Jinja template of report.html. It is a Python module, because Flower's app bundle contains no .j2 files, and a
run over Flower writes its report from the bundle."""

# ruff: noqa: E501

TEMPLATE = """\
{#- The page of a run or of a comparison: one file that needs no network, no script and no other file. What it shows is
    given by parts of page.py, each with its `kind`. -#}
{%- macro side(loop, words) %}{% if loop.index0 not in words %} class="number"{% endif %}{% endmacro %}

{#- It scrolls in itself where the screen is narrow, by a tab stop also with the keyboard. -#}
{%- macro table(part) %}
<div class="wide" tabindex="0" role="region" aria-label="{{ part.caption or "table" }}"><table>
{%- if part.caption %}<caption>{{ part.caption }}</caption>{% endif %}
<thead><tr>{% for value in part.head %}<th{{ side(loop, part.words) }} scope="col">{{ value }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in part.rows %}
<tr>{% for value in row %}
  {%- if loop.first %}<th{{ side(loop, part.words) }} scope="row">{{ value }}</th>
  {%- else %}<td{{ side(loop, part.words) }}>{{ value }}</td>{% endif %}
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- endmacro %}

{%- macro picture(plot) %}
<figure id="{{ plot.name }}"{% if plot.wide %} class="whole"{% endif %}><h3>{{ plot.title }}</h3>
<div class="wide" tabindex="0" role="group" aria-label="picture"><img src="data:image/svg+xml;base64,{{ plot.svg | base64 }}" alt="{{ plot.title }}"></div>
<figcaption>{{ plot.caption }}
{%- for form in ("svg", "csv") %} <a href="pictures/{{ plot.name }}.{{ form }}" download>{{ form | upper }}</a>{% endfor -%}
</figcaption></figure>
{%- endmacro %}

{%- macro show(part) %}
{%- if part.kind == "table" %}{{ table(part) }}
{%- elif part.kind == "gallery" %}<div class="gallery">{% for plot in part.plots | sort(attribute="wide") %}{{ picture(plot) }}{% endfor %}</div>
{%- elif part.kind == "details" %}<details><summary>{{ part.title }}</summary>{% for each in part.parts %}{{ show(each) }}{% endfor %}</details>
{%- else %}<p class="note">{{ part }}</p>
{%- endif %}
{%- endmacro -%}

<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
:root { --ink: #1c1e21; --soft: #5a6068; --line: #d9dce1; --raised: #f5f6f8; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 76rem; background: #ffffff; color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.3rem; margin: 3rem 0 .8rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
p { margin: .6rem 0; max-width: 46rem; }
a { color: var(--accent); }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .92em; }
.conclusion { font-size: 1.25rem; line-height: 1.4; margin: .8rem 0; }
.lead, .note, footer, caption, figcaption { color: var(--soft); }
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
caption { text-align: left; padding-bottom: .4rem; max-width: min(100%, calc(100vw - 2rem)); }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; white-space: nowrap; }
tbody th { font-weight: 500; white-space: nowrap; }
th.number, td.number { text-align: right; padding-left: .8rem; white-space: nowrap; }
td { min-width: 3rem; overflow-wrap: break-word; }
td:not(.number) { min-width: 10rem; }
.gallery { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.6rem; }
.gallery > .whole { grid-column: 1 / -1; }
.gallery > * { min-width: 0; }
figure { margin: .6rem 0; min-width: 0; }
figure img { display: block; width: 100%; height: auto; min-width: 23rem; }
.whole img { min-width: 44rem; }
figcaption { margin-top: .4rem; max-width: 46rem; }
summary { cursor: pointer; color: var(--accent); margin: .6rem 0; }
@media (max-width: 60rem) { .gallery { grid-template-columns: minmax(0, 1fr); } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .wide { overflow: visible; }
  figure, .cards > div, tr { break-inside: avoid; } h2 { break-after: avoid; } figure img, .whole img { min-width: 0; }
  details > * { display: block; } details::details-content { content-visibility: visible; block-size: auto; } }
</style>
</head>
<body><header><h1>{{ title }}</h1><p class="conclusion">{{ conclusion }}</p><p class="lead">{{ lead }}</p></header>
<main>
{%- if cards %}<dl class="cards">
{%- for what, value, remark in cards %}<div><dt>{{ what }}</dt><dd><strong>{{ value }}</strong><span>{{ remark }}</span></dd></div>{% endfor %}</dl>
{%- endif %}
{%- for note in notes %}<p class="note">{{ note }}</p>{% endfor %}
{%- for heading, parts in sections %}<section><h2>{{ heading }}</h2>{% for part in parts %}{{ show(part) }}{% endfor %}</section>{% endfor -%}
</main><footer>{{ foot }}</footer></body>
</html>
"""
