"""The files that a comparison leaves: tables as CSV, Markdown and LaTeX, plots, and report.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import (
    choose_variants,
    collect,
    differences,
    differences_csv,
    for_file,
    means_of,
)
from protosphere.comparison.spec import ComparisonSpec
from protosphere.comparison.tables import Table as TextTable
from protosphere.comparison.tables import accuracy, latex, markdown, notes_below, tables_of
from protosphere.comparison.trials import Trial
from protosphere.core.seeds import limited_threads
from protosphere.core.text import counted, own_version
from protosphere.reports.frames import as_csv
from protosphere.reports.page import Gallery, Page, Part, Table, write, write_plots

if TYPE_CHECKING:
    from protosphere.reports.canvas import Plot

CSV, MARKDOWN, LATEX, REPORT = "table.csv", "table.md", "table.tex", "report.html"
DIFFERENCES = "differences.csv"


@dataclass(frozen=True)
class Written:
    """The tables, their result in a sentence, and the files."""

    tables: Sequence[TextTable]
    conclusion: str
    paths: Sequence[Path]


def write_all(folder: ComparisonFolder, spec: ComparisonSpec, trials: Sequence[Trial]) -> Written:
    """Write all files from the trials that are finished.

    Raises:
        OSError: the folder cannot be written. SettingError: its `pictures` are a link.
    """
    # matplotlib takes a second to import
    from protosphere.comparison.plots import plots_of

    frame = collect(folder, spec, trials)
    once, finished, choices = choose_variants(spec, frame)
    tables = tables_of(once, finished, choices)
    with limited_threads(1):
        drawn = plots_of(once, finished)
    write_plots(folder.path, [plot for plots in drawn.values() for plot in plots])
    conclusion = conclude(once, finished)
    contents = {
        CSV: as_csv(for_file(frame)),
        DIFFERENCES: differences_csv(once, finished),
        MARKDOWN: markdown(tables),
        LATEX: latex(tables, spec.name),
        REPORT: _page(once, frame, tables, drawn, conclusion).html(),
    }
    return Written(tables, conclusion, [write(folder.path / name, content) for name, content in contents.items()])


def conclude(spec: ComparisonSpec, trials: pd.DataFrame) -> str:
    """The result of the first row in a sentence: the most accurate method, its difference to the baseline, and whether
    chance explains it.

    Args:
        trials: the finished ones.
    """
    row, metric, seeds = spec.rows[0].label, str(spec.metrics[0]), len(spec.seeds)
    means = means_of(spec, trials)
    means = means[(means["row"] == row) & (means["metric"] == metric) & (means["seeds"] > 0)].set_index("method")
    if means.empty:
        return f"No finished trial of {row} has the metric {metric}."
    texts = {line.Index: accuracy(line, seeds) for line in means.itertuples()}
    best, base = str(means["mean"].idxmax()), spec.baseline_label
    result = f"On {row} {best} reaches {texts[best]} % ({metric})"
    if best == base and len(means) > 1:
        result += f"; no other method of {len(means)} is above it"
    for gap in differences(spec, trials).itertuples():
        if (gap.row, gap.metric, gap.method) == (row, metric, best) and gap.seeds:
            verdict = "more than chance explains" if gap.significant is True else "which chance may explain"
            verdict = f"of one seed, {verdict}" if pd.isna(gap.p) else verdict
            result += f", {base} {texts[base]} %: {100 * gap.difference:+.1f} points, {verdict}"
    return f"{result}." if len(spec.rows) == 1 else f"{result}. Below are the other rows."


def _page(
    spec: ComparisonSpec,
    frame: pd.DataFrame,
    tables: Sequence[TextTable],
    drawn: Mapping[str, Sequence["Plot"]],
    conclusion: str,
) -> Page:
    numbers = {"data set": len(spec.datasets), "partition": len(spec.partitions)}
    numbers |= {"method": len(spec.methods), "seed": len(spec.seeds)}
    counts = [counted(number, noun) for noun, number in numbers.items() if number]
    lead = (
        f"{frame['run'].count()} of {len(frame)} trials finished: {', '.join(counts)} "
        f"({', '.join(map(str, spec.seeds))}). On each data set and partition all methods have the same split, initial "
        "models and client selection."
    )
    *measured, costs = tables
    sections: list[tuple[str, list[Part]]] = [
        ("Accuracy", [part for table in measured for part in _parts_of(table)]),
        ("Cost", _parts_of(costs)),
        ("Notes", list(notes_below(tables))),
    ]
    for row, plots in drawn.items():
        sections.append((row, [Gallery(plots)]))
    return Page(
        title=spec.title or f"Comparison {spec.name}",
        conclusion=conclusion,
        lead=lead,
        sections=sections,
        foot=f"Protosphere {own_version()}. {CSV} has the metrics and the folder of every trial, {DIFFERENCES} the "
        "differences; docs/concepts.md explains the terms.",
    )


def _parts_of(table: TextTable) -> list[Part]:
    """A table below its sentence, which is too long for a caption."""
    lines = []
    for name, texts in table.texts.iterrows():
        cells = [str(name)]
        for text, is_bold in zip(texts, table.bold.loc[name], strict=True):
            cells.append(Markup("<strong>{}</strong>").format(text) if is_bold else text)
        lines.append(cells)
    return [table.sentence, Table(["", *table.texts.columns], lines)]
