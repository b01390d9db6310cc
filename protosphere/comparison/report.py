"""The files that a comparison leaves: tables as CSV, Markdown and LaTeX, plots, and report.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import Markup

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import (
    choose_variants,
    collect,
    differences,
    differences_csv,
    for_file,
    gains_of_exchange,
    means_of,
    runs_of,
    summarise,
)
from protosphere.comparison.spec import ComparisonSpec
from protosphere.comparison.tables import Table as TextTable
from protosphere.comparison.tables import accuracy, latex, markdown, notes_below, tables_of
from protosphere.comparison.trials import Trial, not_default
from protosphere.core.seeds import limited_threads
from protosphere.core.text import counted, own_version
from protosphere.reports.frames import as_csv
from protosphere.reports.page import Details, Gallery, Page, Part, Table, code, write, write_plots

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
        REPORT: _page(folder, once, trials, frame, tables, drawn, conclusion).html(),
    }
    return Written(tables, conclusion, [write(folder.path / name, content) for name, content in contents.items()])


def conclude(spec: ComparisonSpec, trials: pd.DataFrame) -> str:
    """The result of the first row in a sentence: what the exchange of the most accurate rule adds, or else the best
    method's difference to the baseline, and whether chance explains it.

    Args:
        trials: the finished ones.
    """
    row, metric, seeds = spec.rows[0].label, str(spec.metrics[0]), len(spec.seeds)
    means = means_of(spec, trials)
    means = means[(means["row"] == row) & (means["metric"] == metric) & (means["seeds"] > 0)].set_index("method")
    if means.empty:
        is_finished = bool((trials["row"] == row).any())
        return f"No finished trial has the metric {metric}." if is_finished else "No trial is finished yet."
    texts = {line.Index: accuracy(line, seeds) for line in means.itertuples()}
    best, base = str(means["mean"].idxmax()), spec.baseline_label
    result = f"On {row} {best} reaches {texts[best]} % ({metric})"
    if best == base and len(means) > 1:
        result += f"; no other method of {len(means)} is above it"
    for gap in differences(spec, trials).itertuples():
        if (gap.row, gap.metric, gap.method) == (row, metric, best) and gap.seeds:
            result += f", {base} {texts[base]} %: {100 * gap.difference:+.1f} points, {_verdict(gap)}"
    highest = means["mean"].max()
    for gain in gains_of_exchange(spec, trials).itertuples():
        exchanged = summarise(runs_of(trials, row, gain.method)[gain.metric])
        if gain.row == row and exchanged and exchanged.mean >= highest:
            highest = exchanged.mean
            effect = "adds" if gain.difference >= 0 else "costs"
            result = (
                f"On {row} {gain.method} reaches {accuracy(exchanged, seeds)} % ({gain.metric}); its exchange {effect} "
                f"{abs(100 * gain.difference):.1f} points, {_verdict(gain)}"
            )
    return f"{result}." if len(spec.rows) == 1 else f"{result}. Below are the other rows."


def _verdict(gap: Any) -> str:
    """Whether chance explains a difference."""
    if pd.isna(gap.p):
        return "of one seed, which chance may explain"
    return "more than chance explains" if gap.significant else "which chance may explain"


def _page(
    folder: ComparisonFolder,
    spec: ComparisonSpec,
    trials: Sequence[Trial],
    frame: pd.DataFrame,
    tables: Sequence[TextTable],
    drawn: Mapping[str, Sequence["Plot"]],
    conclusion: str,
) -> Page:
    numbers = {"data set": len(spec.datasets), "partition": len(spec.partitions)}
    numbers |= {"method": len(spec.methods), "seed": len(spec.seeds)}
    counts = [counted(number, noun) for noun, number in numbers.items() if number]
    lead = (
        f"{frame['run'].count()} of {len(trials)} trials finished: {', '.join(counts)} "
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
    sections += [("Trials", [_trials(folder, spec, frame)]), ("Settings", _settings(spec, trials))]
    return Page(
        title=spec.title or f"Comparison {spec.name}",
        conclusion=conclusion,
        lead=lead,
        sections=sections,
        foot=f"Protosphere {own_version()}. {CSV} has the metrics of every trial, {DIFFERENCES} the differences; "
        "docs/concepts.md explains the terms.",
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


def _trials(folder: ComparisonFolder, spec: ComparisonSpec, frame: pd.DataFrame) -> Table:
    lines = []
    for trial in frame.to_dict("records"):
        values = [trial[f"metric: {metric}"] for metric in spec.metrics]
        figures = [None if value is None else f"{100 * value:.2f}" for value in values]
        seconds = None if trial["seconds"] is None else f"{trial['seconds']:.0f}"
        report = trial["run"] or "not finished"
        if trial["run"] and (folder.path / trial["run"] / REPORT).exists():
            report = Markup('<a href="{}">report</a>').format(f"{trial['run']}/{REPORT}")
        lines.append([trial["row"], trial["method"], trial["seed"], *figures, seconds, report])
    head = ["data set", "method", "seed", *(f"{metric}, %" for metric in spec.metrics), "seconds", "report"]
    return Table(head, lines, words=(0, 1, len(head) - 1))


def _settings(spec: ComparisonSpec, trials: Sequence[Trial]) -> list[Part]:
    """The settings of each method in each row that differ from the defaults."""
    parts: list[Part] = []
    for row in spec.rows:
        lines = []
        for trial in trials:
            if trial.row == row.label and trial.seed == spec.seeds[0]:
                values = [code(f"{name}={value}") for name, value in not_default(trial.settings).items()]
                lines.append([trial.method, Markup(" ").join(values)])
        head = ["method", "settings that differ from the defaults"]
        parts.append(Details(row.label, [Table(head, lines, words=(0, 1))]))
    return parts
