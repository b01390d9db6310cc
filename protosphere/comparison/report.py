"""What a comparison leaves to read: tables as csv, md and tex, plots, and report.html that holds it all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from protosphere.comparison.figures import as_csv, by_seed, differences_csv, every_difference, figures_of, spread
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.plan import Comparison
from protosphere.comparison.tables import Grid, accuracy, grids, labels_for, latex, markdown, notes_below
from protosphere.comparison.trials import Cell, not_default
from protosphere.comparison.variants import tuned
from protosphere.core.seeds import limited_threads
from protosphere.core.terms import TERMS
from protosphere.core.text import one_line, own_version
from protosphere.reports.page import (
    Details,
    Gallery,
    Image,
    Page,
    Part,
    Table,
    code,
    explain,
    images,
    term,
    write,
    write_images,
)

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
    # matplotlib takes a second to import
    from protosphere.comparison.plots import plots_of

    frame = figures_of(folder, comparison, cells)
    once, chosen, choices = tuned(comparison, frame)
    table_grids = grids(once, chosen, choices)
    with limited_threads(1):
        drawn = {row: images(plots) for row, plots in plots_of(once, chosen).items()}
    write_images(folder.path, [image for row_images in drawn.values() for image in row_images])
    contents = {
        CSV: as_csv(frame),
        DIFFERENCES: differences_csv(once, chosen),
        MARKDOWN: markdown(table_grids),
        LATEX: latex(table_grids, labels_for(table_grids, comparison.name)),
        REPORT: _page(folder, comparison, cells, frame, table_grids, drawn, conclude(once, chosen)).html(),
    }
    return Written(table_grids, [write(folder.path / name, content) for name, content in contents.items()])


def conclude(comparison: Comparison, frame: pd.DataFrame) -> str:
    """What came out on the first row, in a sentence: the best method's accuracy beside the baseline's, and whether
    chance would explain it.

    Args:
        frame: of the finished cells.
    """
    row, metric = comparison.rows[0].label, comparison.metrics[0]
    figures = by_seed(frame, comparison, row, metric)
    means = figures.mean().dropna()
    if means.empty:
        return "No trial is finished yet."
    best, base = str(means.idxmax()), comparison.baseline_label
    seeds = len(comparison.seeds)
    reached = f"On {row} {best} reaches {accuracy(spread(figures[best]), seeds)} % ({metric})"
    others = "" if len(comparison.rows) == 1 else " Below are the other rows."
    contrast = every_difference(comparison, frame).get((row, str(metric), best))
    if contrast is None or base not in means:
        return f"{reached}.{others}"
    verdict = "more than chance explains" if contrast.significant else "which chance may explain"
    verdict = verdict if contrast.p is not None else "of one seed, which chance may explain"
    gap = f"{100 * contrast.mean:+.1f} points, {verdict}"
    return f"{reached}, {base} {accuracy(spread(figures[base]), seeds)} %: {gap}.{others}"


def _page(
    folder: ComparisonFolder,
    comparison: Comparison,
    cells: Sequence[Cell],
    frame: pd.DataFrame,
    table_grids: Sequence[Grid],
    drawn: Mapping[str, Sequence[Image]],
    conclusion: str,
) -> Page:
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
    sections: list[tuple[str, list[Part]]] = [
        ("Accuracy", [*(part for grid in measured for part in _table(grid)), explain([*words, *BASELINES])]),
        ("Cost", _table(sizes)),
        ("Notes", list(notes_below(table_grids))),
    ]
    for row, row_images in drawn.items():
        sections.append((row, [Gallery(sorted(row_images, key=lambda image: image.plot.wide))]))
    sections += [("Trials", [_trials(folder, comparison, frame)]), ("Settings", _settings(comparison, cells))]
    return Page(
        title=comparison.title or f"Comparison {comparison.name}",
        conclusion=conclusion,
        lead=lead,
        sections=sections,
        foot=f"Protosphere {own_version()}. {CSV} has the metrics of every trial, {DIFFERENCES} the differences.",
    )


def _table(grid: Grid) -> list[Part]:
    lines = []
    for first, *others in grid.lines:
        texts = [Markup("<strong>{}</strong>").format(cell.text) if cell.best else cell.text for cell in others]
        lines.append([_explain(first.text), *texts])
    # above the table, whose width would break a caption
    return [_explain(grid.title), Table([*map(_explain, grid.head)], lines)]


def _explain(text: str) -> str:
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
    return Markup("").join(parts)


def _trials(folder: ComparisonFolder, comparison: Comparison, frame: pd.DataFrame) -> Table:
    """Every trial's figures, with its run's own report where it has one."""
    lines = []
    for cell in frame.to_dict("records"):
        values = [cell[f"metric: {metric}"] for metric in comparison.metrics]
        figures = [None if value is None else f"{100 * value:.2f}" for value in values]
        seconds = None if cell["seconds"] is None else f"{cell['seconds']:.0f}"
        report = cell["run"] or "not finished"
        if cell["run"] and (folder.path / cell["run"] / REPORT).exists():
            report = Markup('<a href="{}">report</a>').format(f"{cell['run']}/{REPORT}")
        lines.append([cell["row"], cell["method"], cell["seed"], *figures, seconds, report])
    head = ["data set", "method", "seed", *(f"{metric}, %" for metric in comparison.metrics), "seconds", "report"]
    return Table(head, lines, words=(0, 1, len(head) - 1))


def _settings(comparison: Comparison, cells: Sequence[Cell]) -> list[Part]:
    """What each method of each row was set to, where it differs from the defaults."""
    parts: list[Part] = []
    for row in comparison.rows:
        lines = []
        for cell in cells:
            if cell.row == row.label and cell.seed == comparison.seeds[0]:
                values = [code(f"{name}={value}") for name, value in not_default(cell.settings).items()]
                lines.append([cell.method, Markup(" ").join(values)])
        head = ["method", "settings that differ from the defaults"]
        parts.append(Details(row.label, [Table(head, lines, words=(0, 1))]))
    return parts
