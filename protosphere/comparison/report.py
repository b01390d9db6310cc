"""What a comparison leaves to read: table.csv, table.md, table.tex, pictures, and report.html that holds it all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from protosphere.comparison.figures import as_csv, differences_csv, figures_of
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.pictures import pictures_of
from protosphere.comparison.plan import Comparison
from protosphere.comparison.tables import Grid, grids, labels_for, latex, markdown, notes_below
from protosphere.comparison.trials import Cell, not_default
from protosphere.comparison.variants import tuned
from protosphere.core.terms import TERMS
from protosphere.core.text import one_line, own_version
from protosphere.reports.page import (
    Html,
    code,
    details,
    element,
    gallery,
    link,
    page,
    paragraph,
    section,
    table,
    term,
    term_list,
    write,
)
from protosphere.reports.pictures import Picture, framed, write_files

BASELINES = ("majority class", "exchange adds")  # that a comparison's tables have
CSV, MARKDOWN, LATEX, REPORT = "table.csv", "table.md", "table.tex", "report.html"
DIFFERENCES = "differences.csv"


@dataclass(frozen=True)
class Written:
    """The tables, and the files that hold them."""

    grids: Sequence[Grid]
    paths: Sequence[Path]


def write_all(folder: ComparisonFolder, comparison: Comparison, cells: Sequence[Cell]) -> Written:
    """Write every file anew from what is finished.

    Raises:
        OSError: the folder cannot be written. SettingError: its `pictures` are a link.
    """
    frame = figures_of(folder, comparison, cells)
    once, chosen, choices = tuned(comparison, frame)
    table_grids = grids(once, chosen, choices)
    pictures = pictures_of(once, chosen)
    write_files(folder.path, [picture for drawn in pictures.values() for picture in drawn])
    contents = {
        CSV: as_csv(frame),
        DIFFERENCES: differences_csv(once, chosen),
        MARKDOWN: markdown(table_grids),
        LATEX: latex(table_grids, labels_for(table_grids, comparison.name)),
        REPORT: _page(folder, comparison, cells, frame, table_grids, pictures),
    }
    return Written(table_grids, [write(folder.path / name, content) for name, content in contents.items()])


def _page(
    folder: ComparisonFolder,
    comparison: Comparison,
    cells: Sequence[Cell],
    frame: pd.DataFrame,
    table_grids: Sequence[Grid],
    pictures: Mapping[str, Sequence[Picture]],
) -> str:
    title = comparison.title or f"Comparison {comparison.name}"
    numbers = {"data set": len(comparison.datasets), "partition": len(comparison.partitions)}
    numbers |= {"method": len(comparison.methods), "seed": len(comparison.seeds)}
    counts = [f"{number} {noun}{'s' * (number > 1)}" for noun, number in numbers.items() if number]
    lead = (
        f"{frame['run'].count()} of {len(cells)} trials finished: {', '.join(counts)} "
        f"({', '.join(map(str, comparison.seeds))}). On each data set and partition all methods have the same split, "
        "initial models and client selection."
    )
    *measured, sizes = table_grids
    words = [word for metric in comparison.metrics for word in (metric.figure, metric.rule)]
    parts = [
        section("Accuracy", *map(_table, measured), term_list(dict.fromkeys([*words, *BASELINES]))),
        section("Cost", _table(sizes)),
        section("Notes", *[paragraph(note, class_="note") for note in notes_below(table_grids)]),
    ]
    parts += [section(row, gallery(*map(framed, drawn))) for row, drawn in pictures.items()]
    parts.append(section("Trials", _runs(folder, comparison, frame)))
    parts.append(section("Settings", *_settings(comparison, cells)))
    foot = f"Protosphere {own_version()}. {CSV} has the metrics of every trial, {DIFFERENCES} the differences."
    return page(title, parts, lead, foot)


def _table(grid: Grid) -> Html:
    lines = []
    for first, *others in grid.lines:
        cells = [element("strong", cell.text) if cell.best else cell.text for cell in others]
        lines.append([_explain(first.text), *cells])
    # above the table, whose width would break a caption
    return element("div", paragraph(_explain(grid.title)), table([*map(_explain, grid.head)], lines))


def _explain(text: str) -> Html:
    """A heading with its figures and rules, which stand in brackets, as the glossary has them; so the baselines."""
    if text in TERMS and TERMS[text].kind == "baselines":
        return term(text)
    parts: list[str] = []
    for part in re.split(r"(\([^()]*\))", one_line(text)):
        words = re.findall(r"[\w-]+", part)
        if not part.startswith("(") or not words or any(word not in TERMS for word in words):
            parts.append(part)
            continue
        for piece in re.split(r"([\w-]+)", part):
            parts.append(term(piece) if piece in TERMS else piece)
    # which escapes what is no markup yet
    return Html("").join(parts)


def _runs(folder: ComparisonFolder, comparison: Comparison, frame: pd.DataFrame) -> Html:
    """Every cell's figures, with its run's own report where it has one."""
    lines = []
    for cell in frame.to_dict("records"):
        values = [cell[f"metric: {metric}"] for metric in comparison.metrics]
        figures = [None if value is None else f"{100 * value:.2f}" for value in values]
        seconds = None if cell["seconds"] is None else f"{cell['seconds']:.0f}"
        report = cell["run"] or "not finished"
        if cell["run"] and (folder.path / cell["run"] / REPORT).exists():
            report = link("report", f"{cell['run']}/{REPORT}")
        lines.append([cell["row"], cell["method"], cell["seed"], *figures, seconds, report])
    head = ["data set", "method", "seed", *(f"{metric}, %" for metric in comparison.metrics), "seconds", "report"]
    return table(head, lines, words=(0, 1, len(head) - 1))


def _settings(comparison: Comparison, cells: Sequence[Cell]) -> list[Html]:
    """What each method of each row was set to, where it differs from the defaults."""
    parts = []
    for row in comparison.rows:
        row_cells = [cell for cell in cells if cell.row == row.label and cell.seed == comparison.seeds[0]]
        lines = [[cell.method, _codes(cell)] for cell in row_cells]
        head = ["method", "settings that differ from the defaults"]
        parts.append(details(row.label, table(head, lines, words=(0, 1))))
    return parts


def _codes(cell: Cell) -> Html:
    return Html(" ".join(code(f"{name}={value}") for name, value in not_default(cell.settings).items()))
