"""A comparison's tables: frames of words, each with a sentence above and notes below, and the forms that they are
written in: Markdown, LaTeX, the console."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from protosphere.comparison.frame import (
    TEST_SAMPLES,
    MeanStd,
    by_method,
    by_seed,
    differences,
    floor,
    gains_of_exchange,
    summarise,
    without_control,
)
from protosphere.comparison.spec import FLOOR, ComparisonSpec
from protosphere.comparison.variants import Choice
from protosphere.core.text import readable_size
from protosphere.strategies.release import RULE

PAPER = "paper"
NONE = "-"
TOLERANCE = 0.1  # share of the most gradient steps by which methods may differ without a note
DIGITS = 2  # of a percentage
# letters that LaTeX reads as commands, and signs that its first fonts do not have
TEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
TEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {letter: f"${letter}$" for letter in "<>|"}
TEX |= {"±": r"$\pm$", "×": r"$\times$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "→": r"$\to$"}
# Greek letters whose command is not their name: LaTeX has none for those that look like Latin ones
GREEK = {greek: rf"\mathrm{{{latin}}}" for greek, latin in zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEZHIKMNOPTYXo", strict=True)}
GREEK |= {"ε": r"\varepsilon", "ϵ": r"\epsilon", "φ": r"\varphi", "ϕ": r"\phi", "ϑ": r"\vartheta", "ς": r"\varsigma"}
# before a number, and not between two parts of a name such as CIFAR-10; in a number such as 5e-05
MINUS = re.compile(r"(?<![\w.])-(?=\.?\d)|(?<=\de)-(?=\d)")


@dataclass(frozen=True)
class Table:
    """A table to read.

    Attributes:
        kind: `accuracy`, `own-rules`, `differences`, `gains`, `variants` or `cost`.
        sentence: what it shows.
        texts: its cells, with its headings as index and columns.
        bold: of the same shape, which cells stand out.
        notes: all that it needs where it stands alone, as in LaTeX.
    """

    kind: str
    sentence: str
    texts: pd.DataFrame
    bold: pd.DataFrame
    notes: Sequence[str] = ()


def tables_of(comparison: ComparisonSpec, trials: pd.DataFrame, choices: Sequence[Choice] = ()) -> list[Table]:
    """Accuracies; what each method's own rule gives, where rules differ; differences to the baseline; what an exchange
    adds, where a public encoder was read; the variants that one was chosen from; costs.

    Args:
        trials: the finished ones.
        choices: what was chosen of the variants of methods; comparison and trials have these once, see `tuned`.
    """
    name = comparison.title or comparison.name
    notes = _notes(comparison, trials, choices)
    tables = [_accuracies(comparison, trials)]
    if _differ_in_rules(comparison, trials):
        tables.append(_own_rules(comparison, trials))
    if len(comparison.methods) > 1:
        tables.append(_differences(comparison, trials))
    gains = gains_of_exchange(comparison, trials)
    if len(gains):
        tables.append(_gains(comparison, gains))
    if choices:
        tables.append(_variants(comparison, choices))
    tables.append(_costs(comparison, trials))
    named = []
    for table in tables:
        # of variants no test sample was used, of which the notes are
        every_note = table.notes if table.kind == "variants" else [*notes, *table.notes]
        sentence = f"{name}: {table.sentence}."
        named.append(Table(table.kind, sentence, table.texts, table.bold, every_note))
    return named


def notes_below(tables: Sequence[Table]) -> list[str]:
    """The notes of tables that stand together, each once."""
    return list(dict.fromkeys(note for table in tables for note in table.notes))


# --- the forms -------------------------------------------------------------------------------------------------


def console(table: Table) -> RichTable:
    """For a terminal, without sentence and notes, which would be broken to its width."""
    rich_table = RichTable(box=box.SIMPLE_HEAD)
    rich_table.add_column("")
    for name in table.texts:
        rich_table.add_column(Text(name), justify="right")
    for name, texts in table.texts.iterrows():
        cells = zip(texts, table.bold.loc[name], strict=True)
        rich_table.add_row(Text(str(name)), *(Text(text, "bold" if is_bold else "") for text, is_bold in cells))
    return rich_table


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables, each under its sentence, and below all their notes."""
    parts = []
    for table in tables:
        texts = _escaped(table, _as_markdown, "**{}**")
        head = f"| {' | '.join(['', *texts.columns])} |"
        rule = "|---" + "|---:" * len(texts.columns) + "|"
        lines = [f"| {' | '.join(line)} |" for line in texts.itertuples(name=None)]
        parts += [table.sentence, "\n".join([head, rule, *lines])]
    return "\n\n".join([*parts, *notes_below(tables)]) + "\n"


def latex(tables: Sequence[Table], labels: Sequence[str] = ()) -> str:
    """Tables for `booktabs`.

    Args:
        labels: of each table for \\ref; none for no labels.
    """
    parts = ["% \\usepackage{booktabs}\n"]
    for number, table in enumerate(tables):
        style = _escaped(table, as_tex, r"\textbf{{{}}}").style
        parts.append(
            style.to_latex(
                hrules=True,
                position_float="centering",
                column_format="l" + "r" * len(table.texts.columns),
                caption=as_tex(" ".join([_capital(table.sentence), *table.notes])),
                label=labels[number] if labels else None,
            )
        )
    return "\n".join(parts)


def labels_for(tables: Sequence[Table], name: str) -> list[str]:
    """`tab:digits-accuracy` of each table: the comparison's name in letters that a label may have, and the kind."""
    plain_name = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    return [f"tab:{plain_name}-{table.kind}" if plain_name else f"tab:{table.kind}" for table in tables]


def _escaped(table: Table, escape: Callable[[str], str], bold: str) -> pd.DataFrame:
    """A table's cells and headings in another language, with what stands out in the form `bold`."""
    texts = table.texts.map(escape)
    texts = texts.mask(table.bold.astype(bool), texts.map(bold.format))
    return texts.rename(index=escape, columns=escape)


def _as_markdown(text: str) -> str:
    return re.sub(r"[\\|*<`]", r"\\\g<0>", text)


def as_tex(text: str) -> str:
    """Text as LaTeX shows it again, minus signs as longer ones than hyphens."""
    # after the end of a line these two would be an argument of it
    guard = "{}" if text.startswith(("[", "*")) else ""
    return guard + "".join(TEX.get(letter) or _greek(letter) for letter in MINUS.sub("−", text))


def _greek(letter: str) -> str:
    r"""A Greek letter as LaTeX's command for it, `\gamma` in mathematics; any other letter as it is."""
    if letter in GREEK:
        return f"${GREEK[letter]}$"
    match = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(letter, ""))
    if not match:
        return letter
    name = match[2].lower().replace("lamda", "lambda")
    return rf"$\{name.title() if match[1] == 'CAPITAL' else name}$"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


# --- what each shows -------------------------------------------------------------------------------------------

# heading of a row, method, text, whether it is bold
Cell = tuple[str, str, str, bool]


def _accuracies(comparison: ComparisonSpec, trials: pd.DataFrame) -> Table:
    seeds = len(comparison.seeds)
    printed = {(line.row, line.metric, line.method): f"{line.accuracy:.{DIGITS}f}" for line in comparison.paper}
    cells: list[Cell] = []
    for row in comparison.rows:
        for metric in comparison.metrics:
            heading = _heading(comparison, row.label, str(metric))
            figures = by_seed(trials, comparison, row.label, metric)
            for method in figures:
                cells.append((heading, method, accuracy(summarise(figures[method]), seeds), False))
                if (row.label, str(metric), method) in printed:
                    cells.append((f"{heading}, {PAPER}", method, printed[row.label, str(metric), method], False))
            lowest = floor(trials, row.label, metric.floor) if metric.floor else None
            cells.append((heading, FLOOR, accuracy(lowest, seeds), False))
    over = f"mean ± sample standard deviation (ddof 1) over {seeds} seeds" if seeds > 1 else "of one seed"
    notes = []
    if printed:
        notes.append("Columns `paper` are printed in the paper, not measured here.")
    return _lay_out("accuracy", f"accuracy in % ({', '.join(map(str, comparison.metrics))}), {over}", cells, notes)


def _heading(comparison: ComparisonSpec, row: str, metric: str) -> str:
    """The row, and the metric where there are several, or where it is of one rule."""
    several = len(comparison.metrics) > 1 or comparison.metrics[0].rule
    return f"{row} ({metric})" if several else row


def _own_rules(comparison: ComparisonSpec, trials: pd.DataFrame) -> Table:
    cells: list[Cell] = []
    for row in comparison.rows:
        for method, runs in by_method(trials, comparison, row.label).items():
            rules = f" ({' or '.join(runs['rule'].unique())})" if len(runs) else ""
            text = accuracy(summarise(runs["headline"]), len(comparison.seeds)) + rules
            cells.append((row.label, method, text, False))
    return _lay_out("own-rules", "accuracy in % (headline) by each method's own inference rule", cells)


def _differences(comparison: ComparisonSpec, trials: pd.DataFrame) -> Table:
    lines = differences(comparison, trials)
    headings = [_heading(comparison, row, metric) for row, metric in zip(lines.row, lines.metric, strict=True)]
    metrics = ", ".join(map(str, comparison.metrics))
    sentence = f"difference to {comparison.baseline_label} in percentage points ({metrics}), paired by seed"
    return _contrasts("differences", sentence, lines.assign(heading=headings), comparison)


def _gains(comparison: ComparisonSpec, lines: pd.DataFrame) -> Table:
    labels = lines["baseline"].str.rpartition(": ")[0].unique()
    sentence = (
        "what the exchange adds in percentage points: each rule minus its local counterpart, taken from "
        f"{' and '.join(labels)} (encoder minus encoder-local, pool minus pool-local), paired by seed"
    )
    notes = []
    if lines["metric"].str.startswith(f"{RULE} ").any():
        # pool and pool-local both know them
        notes.append("`encoder-local` uses a client's class shares; `encoder` does not.")
        notes.append("Under label skew the exchange adds more than shown.")
    lines = lines.assign(heading=lines["row"] + " (" + lines["metric"] + ")")
    return _contrasts("gains", sentence, lines, comparison, notes)


def _contrasts(
    kind: str, sentence: str, lines: pd.DataFrame, comparison: ComparisonSpec, notes: Sequence[str] = ()
) -> Table:
    """Differences by their column `heading`, with what explains them."""
    seeds = len(comparison.seeds)
    cells: list[Cell] = []
    for line in lines.itertuples():
        cells.append((line.heading, line.method, _difference(line, seeds), line.significant is True))
    if seeds == 1:
        legends = ["One seed gives no interval; chance may explain any difference."]
    else:
        legends = [
            "Brackets are 95 % t intervals without correction for multiplicity.",
            "A bold difference is significant (paired t, 5 %, Holm).",
        ]
    return _lay_out(kind, sentence, cells, [*legends, *notes])


def _difference(line: Any, seeds: int) -> str:
    """With the number of seeds where some of the comparison's are missing."""
    if not line.seeds:
        return NONE
    return difference_text(line.difference, line.low, line.high) + _some_seeds(line.seeds, seeds)


def difference_text(mean: float, low: float | None, high: float | None, digits: int = DIGITS) -> str:
    """`+1.20 [+0.40, +2.00]`: a difference of shares and its ends, in percentage points."""
    # of one seed there is no interval, of equal figures it has no width
    if low is None or high is None or pd.isna(low) or not (low or high):
        return _points(mean, digits)
    return f"{_points(mean, digits)} [{_points(low, digits)}, {_points(high, digits)}]"


def _points(share: float, digits: int) -> str:
    # without negative zeros
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}"


def _variants(comparison: ComparisonSpec, choices: Sequence[Choice]) -> Table:
    cells: list[Cell] = []
    for choice in choices:
        for label, value in choice.tried.items():
            text = accuracy(value, len(comparison.seeds))
            cells.append((choice.row, label, text, label == choice.chosen))
    sentence = "accuracy of the variants on validation samples in %"
    return _lay_out("variants", sentence, cells, ["The bold variant is the choice; test samples took no part."])


def _costs(comparison: ComparisonSpec, trials: pd.DataFrame) -> Table:
    cells: list[Cell] = []
    for row in comparison.rows:
        for method, runs in by_method(trials, comparison, row.label).items():
            for name, text in _cost(runs).items():
                cells.append((f"{row.label}, {name}", method, text, False))
    notes = [
        "M values: millions of values exchanged per round, float32 only.",
        "Steps are gradient steps per client per round.",
    ]
    sentence = "cost of training: bytes in both directions (payload / on the wire) and gradient steps"
    return _lay_out("cost", sentence, cells, notes)


def _cost(runs: pd.DataFrame) -> dict[str, str]:
    """What the runs of a method in a row took on average, in words; values a round where each has four bytes."""
    values, steps = runs["values"], summarise(runs["gradient_steps"])
    return {
        "whole run": _pair(runs[["payload_bytes", "wire_bytes"]]),
        "M values per round": f"{values.mean() / 1e6:.4g}" if len(values) and values.notna().all() else NONE,
        "steps": f"{steps.mean:.4g}" if steps else NONE,
    }


def _pair(sizes: pd.DataFrame) -> str:
    """Means of bytes, each as people read it."""
    return " / ".join(readable_size(round(mean)) for mean in sizes.mean()) if len(sizes) else NONE


def accuracy(value: MeanStd | None, seeds: int, digits: int = DIGITS) -> str:
    """`82.90 ± 0.46`; of one seed without spread; with the number of seeds where some are missing."""
    if value is None:
        return NONE
    within = "" if value.std is None else f" ± {100 * value.std:.{digits}f}"
    return f"{100 * value.mean:.{digits}f}{within}{_some_seeds(value.seeds, seeds)}"


def _some_seeds(some: int, seeds: int) -> str:
    return f" ({some} of {seeds} seeds)" if some < seeds else ""


def _lay_out(kind: str, sentence: str, cells: Sequence[Cell], notes: Sequence[str] = ()) -> Table:
    """Methods down and rows across, or the other way round where that is the narrower table."""
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


# --- notes, of ten words ---------------------------------------------------------------------------------------


def _notes(comparison: ComparisonSpec, trials: pd.DataFrame, choices: Sequence[Choice]) -> list[str]:
    """What every table of a comparison has to say."""
    companions = trials.dropna(subset="companion")[["row", "method", "companion"]].drop_duplicates()
    notes = [f"{row}: {method} trains with {name}." for row, method, name in companions.itertuples(index=False)]
    for choice in choices:
        notes.append(_describe_choice(choice))
    if comparison.note:
        notes.append(comparison.note)
    rules = trials["rule"].dropna().unique()
    if _shows_own_rules(comparison) and len(rules) == 1:
        notes.append(f"Every method's own inference rule is {rules[0]}.")
    controls = " and ".join(without_control(comparison, trials))
    if controls:
        notes.append(f"What the exchange adds is missing: `local` lacks {controls}.")
        notes.append("Name an `encoder` for all." if comparison.control_label else "Add `local` to the methods.")
    notes += _test_samples(comparison, trials)
    doubtful = trials[trials["doubts"] != ""].drop_duplicates(["row", "method", "doubts"])
    notes += [f"{row}, {method}: {doubts}." for row, method, doubts in doubtful[["row", "method", "doubts"]].values]
    for row in comparison.rows:
        steps = trials[trials["row"] == row.label].groupby("method")["gradient_steps"].agg(summarise).dropna()
        means = [step.mean for step in steps]
        if means and min(means) < (1 - TOLERANCE) * max(means):
            notes.append(f"{row.label}: gradient steps differ among methods; see the costs.")
    return notes


def _shows_own_rules(comparison: ComparisonSpec) -> bool:
    """Whether a metric is by each method's own rule, or stands in the place of one that is."""
    by_own_rule = (not metric.rule or metric.of_domain or metric.figure == "headline" for metric in comparison.metrics)
    return any(by_own_rule)


def _differ_in_rules(comparison: ComparisonSpec, trials: pd.DataFrame) -> bool:
    return _shows_own_rules(comparison) and trials["rule"].nunique() > 1


def _describe_choice(choice: Choice) -> str:
    if not choice.chosen:
        return f"{choice.row}: nothing is chosen of {choice.method} without all trials."
    values, count = choice.values(choice.chosen), len(choice.tried)
    return f"{choice.row}: validation chose {values} of {choice.method} among {count}."


def _test_samples(comparison: ComparisonSpec, trials: pd.DataFrame) -> list[str]:
    """On how many samples the figures were measured: one data set's, so that seeds are splits of it and no new data."""
    notes = []
    for row in comparison.rows:
        of_row = trials[trials["row"] == row.label]
        differ = bool((of_row.groupby("seed")[TEST_SAMPLES].nunique() > 1).any())
        counts = of_row[TEST_SAMPLES].dropna()
        if len(counts):
            least, most = int(counts.min()), int(counts.max())
            number = f"{least:,}" + (f" to {most:,}" if most > least else "")
            subject = "figures are of" if differ else "all clients together have"
            notes.append(f"{row.label}: {subject} {number} test samples.")
        if differ:
            notes.append(f"{row.label}: methods were measured on different clients, which their differences mix up.")
    if notes and len(comparison.seeds) > 1:
        notes.append("Seeds change only the split, not the data.")
    return notes
