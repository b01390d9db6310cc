"""What a comparison leaves to read: tables as csv, md and tex, plots, and report.html that holds it all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import (
    as_csv,
    by_method,
    by_seed,
    collect,
    differences,
    differences_csv,
    gains_of_exchange,
    summarise,
)
from protosphere.comparison.spec import ComparisonSpec
from protosphere.comparison.tables import Table as TextTable
from protosphere.comparison.tables import accuracy, labels_for, latex, markdown, notes_below, tables_of
from protosphere.comparison.trials import Trial, not_default
from protosphere.comparison.variants import choose_variants
from protosphere.core.seeds import limited_threads
from protosphere.core.text import counted, own_version
from protosphere.reports.page import (
    Details,
    Gallery,
    Image,
    Page,
    Part,
    Table,
    code,
    images,
    write,
    write_images,
)

CSV, MARKDOWN, LATEX, REPORT = "table.csv", "table.md", "table.tex", "report.html"
DIFFERENCES = "differences.csv"


@dataclass(frozen=True)
class Written:
    """The tables, what they show in a sentence, and the files that hold them."""

    tables: Sequence[TextTable]
    conclusion: str
    paths: Sequence[Path]


def write_all(folder: ComparisonFolder, comparison: ComparisonSpec, trials: Sequence[Trial]) -> Written:
    """Write every file anew from what is finished.

    Raises:
        OSError: the folder cannot be written. SettingError: its `pictures` are a link.
    """
    # matplotlib takes a second to import
    from protosphere.comparison.plots import plots_of

    frame = collect(folder, comparison, trials)
    once, finished_trials, choices = choose_variants(comparison, frame)
    tables = tables_of(once, finished_trials, choices)
    with limited_threads(1):
        drawn = {row: images(plots) for row, plots in plots_of(once, finished_trials).items()}
    write_images(folder.path, [image for row_images in drawn.values() for image in row_images])
    conclusion = conclude(once, finished_trials)
    contents = {
        CSV: as_csv(frame),
        DIFFERENCES: differences_csv(once, finished_trials),
        MARKDOWN: markdown(tables),
        LATEX: latex(tables, labels_for(tables, comparison.name)),
        REPORT: _page(folder, once, trials, frame, tables, drawn, conclusion).html(),
    }
    return Written(tables, conclusion, [write(folder.path / name, content) for name, content in contents.items()])


def conclude(comparison: ComparisonSpec, trials: pd.DataFrame) -> str:
    """What came out on the first row, in a sentence: the best method's accuracy, what its exchange adds or else how far
    it is from the baseline, and whether chance would explain it.

    Args:
        trials: the finished ones.
    """
    row, metric, seeds = comparison.rows[0].label, comparison.metrics[0], len(comparison.seeds)
    figures = by_seed(trials, comparison, row, metric)
    means = figures.mean().dropna()
    if means.empty:
        is_finished = bool((trials["row"] == row).any())
        return f"No finished trial has the metric {metric}." if is_finished else "No trial is finished yet."
    remark = "" if len(comparison.rows) == 1 else " Below are the other rows."
    if exchange := _conclude_exchange(comparison, trials, means.max()):
        return exchange + remark
    best, base = str(means.idxmax()), comparison.baseline_label
    reached = f"On {row} {best} reaches {accuracy(summarise(figures[best]), seeds)} % ({metric})"
    if best == base and len(means) > 1:
        return f"{reached}; no other method of {len(means)} is above it.{remark}"
    lines = differences(comparison, trials)
    lines = lines[(lines["row"] == row) & (lines["metric"] == str(metric)) & (lines["method"] == best)]
    if lines.empty or not lines["seeds"].iloc[0]:
        return f"{reached}.{remark}"
    gap = lines.iloc[0]
    points = f"{100 * gap['difference']:+.1f} points, {_verdict(gap)}"
    return f"{reached}, {base} {accuracy(summarise(figures[base]), seeds)} %: {points}.{remark}"


def _conclude_exchange(comparison: ComparisonSpec, trials: pd.DataFrame, best: float) -> str:
    """What the most accurate exchanged rule on the first row adds; "" if none was measured, or all are below `best`."""
    row, seeds = comparison.rows[0].label, len(comparison.seeds)
    runs_by_method = by_method(trials, comparison, row)
    reached: dict[float, tuple[pd.Series, pd.Series]] = {}
    for _, gain in gains_of_exchange(comparison, trials).iterrows():
        if gain["row"] == row and gain["seeds"]:
            figures = runs_by_method[gain["method"]][gain["metric"]]
            reached[figures.mean()] = (gain, figures)
    if not reached or max(reached) < best:
        return ""
    gain, figures = reached[max(reached)]
    change = 100 * gain["difference"]
    return (
        f"On {row} {gain['method']} reaches {accuracy(summarise(figures), seeds)} % ({gain['metric']}); its exchange "
        f"{'adds' if change >= 0 else 'costs'} {abs(change):.1f} points, {_verdict(gain)}."
    )


def _verdict(gap: pd.Series) -> str:
    """Whether chance would explain a difference."""
    # of one seed there is no test
    if pd.isna(gap["p"]):
        return "of one seed, which chance may explain"
    return "more than chance explains" if gap["significant"] else "which chance may explain"


def _page(
    folder: ComparisonFolder,
    comparison: ComparisonSpec,
    trials: Sequence[Trial],
    frame: pd.DataFrame,
    tables: Sequence[TextTable],
    drawn: Mapping[str, Sequence[Image]],
    conclusion: str,
) -> Page:
    """The page of a comparison, which has each method once where a variant of it was chosen."""
    numbers = {"data set": len(comparison.datasets), "partition": len(comparison.partitions)}
    numbers |= {"method": len(comparison.methods), "seed": len(comparison.seeds)}
    counts = [counted(number, noun) for noun, number in numbers.items() if number]
    lead = (
        f"{frame['run'].count()} of {len(trials)} trials finished: {', '.join(counts)} "
        f"({', '.join(map(str, comparison.seeds))}). On each data set and partition all methods have the same split, "
        "initial models and client selection."
    )
    *measured, costs = tables
    sections: list[tuple[str, list[Part]]] = [
        ("Accuracy", [part for table in measured for part in _table(table)]),
        ("Cost", _table(costs)),
        ("Notes", list(notes_below(tables))),
    ]
    for row, row_images in drawn.items():
        sections.append((row, [Gallery(sorted(row_images, key=lambda image: image.plot.wide))]))
    sections += [("Trials", [_trials(folder, comparison, frame)]), ("Settings", _settings(comparison, trials))]
    return Page(
        title=comparison.title or f"Comparison {comparison.name}",
        conclusion=conclusion,
        lead=lead,
        sections=sections,
        foot=f"Protosphere {own_version()}. {CSV} has the metrics of every trial, {DIFFERENCES} the differences; "
        "docs/concepts.md explains the terms.",
    )


def _table(table: TextTable) -> list[Part]:
    lines = []
    for name, texts in table.texts.iterrows():
        cells = [str(name)]
        for text, is_bold in zip(texts, table.bold.loc[name], strict=True):
            cells.append(Markup("<strong>{}</strong>").format(text) if is_bold else text)
        lines.append(cells)
    # above the table, whose width would break a caption
    return [table.sentence, Table(["", *table.texts.columns], lines)]


def _trials(folder: ComparisonFolder, comparison: ComparisonSpec, frame: pd.DataFrame) -> Table:
    """Every trial's figures, with its run's own report where it has one."""
    lines = []
    for trial in frame.to_dict("records"):
        values = [trial[f"metric: {metric}"] for metric in comparison.metrics]
        figures = [None if value is None else f"{100 * value:.2f}" for value in values]
        seconds = None if trial["seconds"] is None else f"{trial['seconds']:.0f}"
        report = trial["run"] or "not finished"
        if trial["run"] and (folder.path / trial["run"] / REPORT).exists():
            report = Markup('<a href="{}">report</a>').format(f"{trial['run']}/{REPORT}")
        lines.append([trial["row"], trial["method"], trial["seed"], *figures, seconds, report])
    head = ["data set", "method", "seed", *(f"{metric}, %" for metric in comparison.metrics), "seconds", "report"]
    return Table(head, lines, words=(0, 1, len(head) - 1))


def _settings(comparison: ComparisonSpec, trials: Sequence[Trial]) -> list[Part]:
    """What each method of each row was set to, where it differs from the defaults."""
    parts: list[Part] = []
    for row in comparison.rows:
        lines = []
        for trial in trials:
            if trial.row == row.label and trial.seed == comparison.seeds[0]:
                values = [code(f"{name}={value}") for name, value in not_default(trial.settings).items()]
                lines.append([trial.method, Markup(" ").join(values)])
        head = ["method", "settings that differ from the defaults"]
        parts.append(Details(row.label, [Table(head, lines, words=(0, 1))]))
    return parts
