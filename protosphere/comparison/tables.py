"""A comparison's tables, and their forms: Markdown, LaTeX, the console."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from protosphere.comparison.frame import (
    TEST_SAMPLES,
    Choice,
    differences,
    floor,
    gains_of_exchange,
    means_of,
    runs_of,
)
from protosphere.comparison.spec import FLOOR, ComparisonSpec
from protosphere.core.text import GREEK, readable_size
from protosphere.strategies.release import RULE

PAPER = "paper"
NONE = "-"
TOLERANCE = 0.1  # relative difference in gradient steps above which a note names it
DIGITS = 2  # of a percentage
# characters that LaTeX reads as commands or that its default fonts lack
TEX: dict[str, str | int | None] = {letter: f"\\{letter}" for letter in "&%$#_{}"}
TEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {letter: f"${letter}$" for letter in "<>|"} | {"±": r"$\pm$", "−": "$-$"}
TEX |= {letter: rf"$\{name}$" for letter, name in GREEK.items()}
MINUS = re.compile(r"(?<![\w.])-(?=\.?\d)")  # the sign of a number, unlike the hyphen of CIFAR-10


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        kind: `accuracy`, `differences`, `gains`, `variants` or `cost`.
        sentence: what it shows.
        texts: its cells, with its headings as index and columns.
        bold: which cells are bold.
        notes: the notes that it needs where it stands alone, as in LaTeX.
    """

    kind: str
    sentence: str
    texts: pd.DataFrame
    bold: pd.DataFrame
    notes: Sequence[str] = ()


# heading of a row of the comparison, method, text, whether it is bold
Cell = tuple[str, str, str, bool]


def tables_of(spec: ComparisonSpec, trials: pd.DataFrame, choices: Sequence[Choice] = ()) -> list[Table]:
    """The tables of a comparison: those of `Table.kind` for which there are figures.

    Args:
        trials: the finished ones.
        choices: the variants that were chosen, see `choose_variants`.
    """
    means = means_of(spec, trials)
    gains = gains_of_exchange(spec, trials)
    tables = [_accuracies(spec, trials, means)]
    if len(spec.methods) > 1:
        tables.append(_differences(spec, trials))
    if len(gains):
        tables.append(_gains(spec, gains))
    if choices:
        tables.append(_variants(spec, choices))
    tables.append(_costs(spec, trials, means))
    notes = _notes(spec, trials, choices)
    named = []
    for table in tables:
        # the notes are about test samples, which the choice of variants does not use
        notes_of_table = table.notes if table.kind == "variants" else [*notes, *table.notes]
        sentence = f"{spec.title or spec.name}: {table.sentence}."
        named.append(replace(table, sentence=sentence, notes=notes_of_table))
    return named


def notes_below(tables: Sequence[Table]) -> list[str]:
    """The notes of several tables, each once."""
    return list(dict.fromkeys(note for table in tables for note in table.notes))


# --- the forms -------------------------------------------------------------------------------------------------


def console(table: Table) -> RichTable:
    """The cells for a terminal."""
    rich_table = RichTable("", box=box.SIMPLE_HEAD)
    for name in table.texts:
        rich_table.add_column(Text(name), justify="right")
    for name, texts in table.texts.iterrows():
        cells = zip(texts, table.bold.loc[name], strict=True)
        rich_table.add_row(Text(str(name)), *(Text(text, "bold" if is_bold else "") for text, is_bold in cells))
    return rich_table


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables, each below its sentence, then all notes."""
    parts = []
    for table in tables:
        texts = _escaped(table, lambda text: re.sub(r"[\\|*<`]", r"\\\g<0>", text), "**{}**")
        lines = [["", *texts.columns], *texts.itertuples(name=None)]
        head, *body = [f"| {' | '.join(line)} |" for line in lines]
        rule = "|---" + "|---:" * len(texts.columns) + "|"
        parts += [table.sentence, "\n".join([head, rule, *body])]
    return "\n\n".join([*parts, *notes_below(tables)]) + "\n"


def latex(tables: Sequence[Table], name: str = "") -> str:
    """Tables for `booktabs`; `name` begins their labels for \\ref."""
    plain_name = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    parts = ["% \\usepackage{booktabs}\n"]
    for table in tables:
        style = _escaped(table, as_tex, r"\textbf{{{}}}").style
        sentence = table.sentence[:1].upper() + table.sentence[1:]
        parts.append(
            style.to_latex(
                hrules=True,
                position_float="centering",
                column_format="l" + "r" * len(table.texts.columns),
                caption=as_tex(" ".join([sentence, *table.notes])),
                label=f"tab:{plain_name}-{table.kind}",
            )
        )
    return "\n".join(parts)


def _escaped(table: Table, escape: Callable[[str], str], bold: str) -> pd.DataFrame:
    texts = table.texts.map(escape)
    texts = texts.mask(table.bold.astype(bool), texts.map(bold.format))
    return texts.rename(index=escape, columns=escape)


def as_tex(text: str) -> str:
    """Text as LaTeX shows it again."""
    # after the end of a line these two would be its argument
    guard = "{}" if text.startswith(("[", "*")) else ""
    return guard + MINUS.sub("−", text).translate(str.maketrans(TEX))


# --- what each shows -------------------------------------------------------------------------------------------


def _lay_out(kind: str, sentence: str, cells: Sequence[Cell], notes: Sequence[str] = ()) -> Table:
    """Methods down and rows across, or the other way round if that is narrower."""
    long = pd.DataFrame(cells, columns=["heading", "method", "text", "bold"])
    methods, headings = long["method"].unique(), long["heading"].unique()
    wide = long.pivot(index="method", columns="heading").reindex(methods).reindex(columns=headings, level=1)
    texts, bold = wide["text"].astype(object), wide["bold"].eq(True)
    is_printed = [heading.endswith(f", {PAPER}") for heading in headings]
    texts = texts.mask(texts.isna(), NONE)
    texts.loc[:, is_printed] = texts.loc[:, is_printed].replace(NONE, "")
    texts.index.name = texts.columns.name = None
    if is_printed.count(False) >= len(methods):
        texts, bold = texts.T, bold.T
    return Table(kind, sentence, texts, bold, notes)


def _accuracies(spec: ComparisonSpec, trials: pd.DataFrame, means: pd.DataFrame) -> Table:
    seeds = len(spec.seeds)
    printed = {(line.row, line.metric, line.method): f"{line.accuracy:.{DIGITS}f}" for line in spec.paper}
    floors = {str(metric): metric.floor for metric in spec.metrics}
    cells: list[Cell] = []
    for (row, metric), lines in means.groupby(["row", "metric"], sort=False):
        heading = _heading(spec, row, metric)
        for line in lines.itertuples():
            cells.append((heading, line.method, accuracy(line, seeds), False))
            if (row, metric, line.method) in printed:
                cells.append((f"{heading}, {PAPER}", line.method, printed[row, metric, line.method], False))
        lowest = floor(trials, row, floors[metric]) if floors[metric] else None
        cells.append((heading, FLOOR, accuracy(lowest, seeds), False))
    over = f"mean ± sample standard deviation (ddof 1) over {seeds} seeds" if seeds > 1 else "of one seed"
    notes = ["Columns `paper` are printed in the paper, not measured here."] if printed else []
    return _lay_out("accuracy", f"accuracy in % ({', '.join(floors)}), {over}", cells, notes)


def _heading(spec: ComparisonSpec, row: str, metric: str) -> str:
    """The row, with the metric if there are several or it names a rule."""
    return f"{row} ({metric})" if len(spec.metrics) > 1 or spec.metrics[0].rule else row


def _differences(spec: ComparisonSpec, trials: pd.DataFrame) -> Table:
    lines = differences(spec, trials)
    headings = [_heading(spec, row, metric) for row, metric in zip(lines.row, lines.metric, strict=True)]
    metrics = ", ".join(map(str, spec.metrics))
    sentence = f"difference to {spec.baseline_label} in percentage points ({metrics}), paired by seed"
    return _contrasts("differences", sentence, lines.assign(heading=headings), spec)


def _gains(spec: ComparisonSpec, lines: pd.DataFrame) -> Table:
    labels = lines["baseline"].str.rpartition(": ")[0].unique()
    sentence = (
        "what the exchange adds in percentage points: each rule minus its local counterpart, taken from "
        f"{' and '.join(labels)} (encoder minus encoder-local, pool minus pool-local), paired by seed"
    )
    notes = []
    if lines["metric"].str.startswith(f"{RULE} ").any():
        notes.append("`encoder-local` uses a client's class shares; `encoder` does not.")
        notes.append("Under label skew the exchange adds more than shown.")
    lines = lines.assign(heading=lines["row"] + " (" + lines["metric"] + ")")
    return _contrasts("gains", sentence, lines, spec, notes)


def _contrasts(kind: str, sentence: str, lines: pd.DataFrame, spec: ComparisonSpec, notes: Sequence[str] = ()) -> Table:
    seeds = len(spec.seeds)
    cells: list[Cell] = []
    for line in lines.itertuples():
        text = difference_text(line.difference, line.low, line.high) if line.seeds else NONE
        cells.append((line.heading, line.method, text + _some_seeds(line.seeds, seeds), line.significant is True))
    legends = ["One seed gives no interval; chance may explain any difference."]
    if seeds > 1:
        legends = [
            "Brackets are 95 % t intervals without correction for multiplicity.",
            "A bold difference is significant (paired t, 5 %, Holm).",
        ]
    return _lay_out(kind, sentence, cells, [*legends, *notes])


def _variants(spec: ComparisonSpec, choices: Sequence[Choice]) -> Table:
    cells: list[Cell] = []
    for choice in choices:
        for label, value in choice.tried.items():
            cells.append((choice.row, label, accuracy(value, len(spec.seeds)), label == choice.chosen))
    sentence = "accuracy of the variants on validation samples in %"
    return _lay_out("variants", sentence, cells, ["The bold variant is the choice; test samples took no part."])


def _costs(spec: ComparisonSpec, trials: pd.DataFrame, means: pd.DataFrame) -> Table:
    cells: list[Cell] = []
    for line in means[means["metric"] == str(spec.metrics[0])].itertuples():
        values = runs_of(trials, line.row, line.method)["values"]
        texts = dict.fromkeys(("whole run", "M values per round", "steps"), NONE)
        if len(values):
            texts["whole run"] = f"{readable_size(round(line.payload))} / {readable_size(round(line.wire))}"
        if len(values) and values.notna().all():
            texts["M values per round"] = f"{values.mean() / 1e6:.4g}"
        if pd.notna(line.gradient_steps):
            texts["steps"] = f"{line.gradient_steps:.4g}"
        cells += [(f"{line.row}, {name}", line.method, text, False) for name, text in texts.items()]
    notes = [
        "M values: millions of values exchanged per round, float32 only.",
        "Steps are gradient steps per client per round.",
    ]
    sentence = "cost of training: bytes in both directions (payload / on the wire) and gradient steps"
    return _lay_out("cost", sentence, cells, notes)


# --- cells and notes -------------------------------------------------------------------------------------------


def accuracy(value: Any, seeds: int, digits: int = DIGITS) -> str:
    """`82.90 ± 0.46`, with the number of seeds if some are missing.

    Args:
        value: a `MeanStd`, a line of `means_of`, or None.
    """
    if value is None or not value.seeds:
        return NONE
    deviation = "" if pd.isna(value.std) else f" ± {100 * value.std:.{digits}f}"
    return f"{100 * value.mean:.{digits}f}{deviation}{_some_seeds(value.seeds, seeds)}"


def difference_text(mean: float, low: float | None, high: float | None, digits: int = DIGITS) -> str:
    """`+1.20 [+0.40, +2.00]`: a difference of shares and its interval, in percentage points."""
    # one seed has no interval, that of equal figures has no width
    if low is None or high is None or pd.isna(low) or not (low or high):
        return _points(mean, digits)
    return f"{_points(mean, digits)} [{_points(low, digits)}, {_points(high, digits)}]"


def _points(share: float, digits: int) -> str:
    # without negative zeros
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}"


def _some_seeds(some: int, seeds: int) -> str:
    return f" ({some} of {seeds} seeds)" if 0 < some < seeds else ""


def _notes(spec: ComparisonSpec, trials: pd.DataFrame, choices: Sequence[Choice]) -> list[str]:
    notes = []
    companions = trials.dropna(subset="companion")[["row", "method", "companion"]].drop_duplicates()
    for row, method, name in companions.itertuples(index=False):
        notes.append(f"{row}: {method} trains with {name}.")
    for choice in choices:
        text = f"{choice.row}: nothing is chosen of {choice.method} without all trials."
        if choice.chosen:
            text = f"{choice.row}: validation chose {choice.values} of {choice.method} among {len(choice.tried)}."
        notes.append(text)
    if spec.note:
        notes.append(spec.note)
    if any(not metric.rule for metric in spec.metrics):
        for rule, methods in trials.dropna(subset="rule").groupby("rule", sort=False)["method"]:
            notes.append(f"{rule} is the own inference rule of {', '.join(methods.unique())}.")
    for row_label, runs in trials.groupby("row", sort=False):
        notes += _notes_on_samples(row_label, runs)
    if trials[TEST_SAMPLES].notna().any() and len(spec.seeds) > 1:
        notes.append("Seeds change only the split, not the data.")
    doubtful = trials[trials["doubts"] != ""].drop_duplicates(["row", "method", "doubts"])
    for row, method, doubts in doubtful[["row", "method", "doubts"]].itertuples(index=False):
        notes.append(f"{row}, {method}: {doubts}.")
    for row_label, runs in trials.groupby("row", sort=False):
        steps = runs.astype({"gradient_steps": float}).groupby("method")["gradient_steps"].mean()
        if steps.min() < (1 - TOLERANCE) * steps.max():
            notes.append(f"{row_label}: gradient steps differ among methods; see the costs.")
    return notes


def _notes_on_samples(row: str, runs: pd.DataFrame) -> list[str]:
    """How many test samples the figures of a row are of."""
    counts = runs[TEST_SAMPLES].dropna()
    if counts.empty:
        return []
    number = f"{counts.min():,}"
    if counts.max() > counts.min():
        number += f" to {counts.max():,}"
    if not (runs.groupby("seed")[TEST_SAMPLES].nunique() > 1).any():
        return [f"{row}: all clients together have {number} test samples."]
    return [
        f"{row}: figures are of {number} test samples.",
        f"{row}: methods were measured on different clients, which their differences mix up.",
    ]
