"""A comparison's tables: on the console, as Markdown and as LaTeX. One layout, three ways to write it down."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from protosphere.comparison.frame import (
    TEST_SAMPLES,
    MeanStd,
    by_method,
    by_seed,
    every_difference,
    gains_of_exchange,
    summarise,
    without_control,
)
from protosphere.comparison.paired import CONFIDENCE, Difference, ahead
from protosphere.comparison.spec import DOMAIN, ComparisonSpec
from protosphere.comparison.variants import Choice
from protosphere.core.text import readable_size
from protosphere.record.metrics_lines import MAJORITY
from protosphere.strategies.release import RULE

FLOOR = "majority class"
PAPER = "paper"
NONE = "-"
TOLERANCE = 0.1  # share of the largest budget by which methods may differ unsaid
KINDS = ("accuracy", "differences", "gains", "variants", "cost")
DIGITS = 2  # of a percentage
TEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    | {"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "λ": r"$\lambda$", "μ": r"$\mu$"}
    | {letter: f"${letter}$" for letter in "<>|"}  # in text LaTeX's first fonts have other letters in their places
    | {"−": "$-$"}
)
# before a number, and not between two parts of a name such as CIFAR-10; in a number such as 5e-05
MINUS = re.compile(r"(?<![\w.])-(?=\.?\d)|(?<=\de)-(?=\d)")


@dataclass(frozen=True)
class Cell:
    """One cell of a table; `best` where it stands out."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table before it is written: the first entry of a line is its heading. `kind` is one of `KINDS`; `notes` are all
    that it needs where it stands alone, as in LaTeX."""

    kind: str
    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


def tables_of(comparison: ComparisonSpec, frame: pd.DataFrame, choices: Sequence[Choice] = ()) -> list[Table]:
    """The accuracies, the differences to the baseline where there is another method, what an exchange adds where a
    public encoder was read, the variants that one was chosen from, the bytes.

    Args:
        frame: of the finished trials.
        choices: what was chosen of the variants of methods; comparison and frame have these once, see `tuned`.
    """
    notes: list[str] = []
    companions = frame.dropna(subset="companion")[["row", "method", "companion"]].drop_duplicates()
    for row, method, name in companions.itertuples(index=False):
        notes.append(f"{row}, {method}: with {name}")
    notes += map(_describe_choice, choices)
    if comparison.note:
        notes.append(comparison.note)
    notes += _own_rules(comparison, frame)
    notes += _missing_controls(comparison, frame)
    notes += _test_samples(comparison, frame)
    notes += _unknown_domains(comparison, frame)
    notes += _different_budgets(comparison, frame)
    tables = [_accuracies(comparison, notes, frame)]
    if len(comparison.methods) > 1:
        tables.append(_differences(comparison, notes, frame))
    if gains := gains_of_exchange(comparison, frame):
        tables.append(_gains(comparison, notes, gains))
    if choices:
        tables.append(_tabulate_variants(comparison, choices))
    tables.append(_costs(comparison, notes, frame))
    return tables


def notes_below(tables: Sequence[Table]) -> list[str]:
    """The notes of tables that stand together, each once."""
    return list(dict.fromkeys(note for table in tables for note in table.notes))


def console(table: Table) -> RichTable:
    """For a terminal, without title and notes, which would be broken to its width."""
    shown = RichTable(box=box.SIMPLE_HEAD)
    for index, name in enumerate(table.head):
        shown.add_column(Text(name), justify="right" if index else "left")
    for line in table.lines:
        shown.add_row(*(Text(cell.text, "bold" if cell.best else "") for cell in line))
    return shown


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables, what stands out in bold, and below all their notes."""

    def cell(content: Cell) -> str:
        text = re.sub(r"[\\|*<`]", r"\\\g<0>", content.text)
        return f"**{text}**" if content.best else text

    parts = []
    for table in tables:
        rows = [f"| {' | '.join(map(cell, line))} |" for line in _lines_with_head(table)]
        rows.insert(1, "|---" + "|---:" * (len(table.head) - 1) + "|")
        parts += [table.title, "\n".join(rows)]
    return "\n\n".join([*parts, *notes_below(tables)]) + "\n"


def latex(tables: Sequence[Table], labels: Sequence[str] = (), caption: str = "") -> str:
    """Tables for `booktabs`, what stands out in \\textbf.

    Args:
        labels: of each table for \\ref; none for no labels. caption: as LaTeX, in place of each one's own.
    """
    parts = [r"% \usepackage{booktabs}"]
    for number, table in enumerate(tables):
        head, *rows = [" & ".join(map(_tex, line)) + r" \\" for line in _lines_with_head(table)]
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption or _caption(table)}}}"]
        if labels:
            lines.append(rf"\label{{{labels[number]}}}")
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"\toprule", head, r"\midrule", *rows]
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]))
    return "\n\n".join(parts) + "\n"


def _lines_with_head(table: Table) -> list[Sequence[Cell]]:
    return [[Cell(name) for name in table.head], *table.lines]


def labels_for(tables: Sequence[Table], name: str) -> list[str]:
    """`tab:digits-accuracy` of each table: the comparison's name in letters that a label may have, and the kind."""
    plain_name = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    return [f"tab:{plain_name}-{table.kind}" if plain_name else f"tab:{table.kind}" for table in tables]


def _caption(table: Table) -> str:
    """Title and notes as sentences, each with a capital."""
    sentences = [sentence[:1].upper() + sentence[1:].rstrip(".") for sentence in (table.title, *table.notes)]
    return " ".join(f"{_as_tex(sentence)}." for sentence in sentences)


def _accuracies(comparison: ComparisonSpec, notes: Sequence[str], frame: pd.DataFrame) -> Table:
    seeds = len(comparison.seeds)
    methods = [method.label for method in comparison.methods]
    printed = {(line.row, line.metric, line.method): f"{line.accuracy:.{DIGITS}f}" for line in comparison.paper}
    columns, paper = {}, {}
    for row in comparison.rows:
        for metric in comparison.metrics:
            figures = by_seed(frame, comparison, row.label, metric)
            best = ahead(figures)
            cells = {method: Cell(accuracy(summarise(figures[method]), seeds), method == best) for method in methods}
            lowest = floor(frame, row.label, metric.floor) if metric.floor else None
            cells[FLOOR] = Cell(accuracy(lowest, seeds))
            name = _name(comparison, row.label, str(metric))
            columns[name] = cells
            paper[name] = {method: printed.get((row.label, str(metric), method), "") for method in methods}
    if any(text for texts in paper.values() for text in texts.values()):
        notes = [*notes, "paper: values printed in the paper, not measured here"]
    over = f"mean ± sample standard deviation (ddof 1) over {seeds} seeds" if seeds > 1 else "one seed"
    if seeds > 1 and len(methods) > 1:
        legend = "bold accuracy: the best method, if it differs significantly from every other"
        notes = [*notes, f"{legend} (paired t-test, {100 * CONFIDENCE:g} %)"]
    metrics = ", ".join(map(str, comparison.metrics))
    title = f"{comparison.title or comparison.name}: accuracy in % ({metrics}), {over}"
    return _lay_out("accuracy", title, columns, [*methods, FLOOR], notes, paper)


def _name(comparison: ComparisonSpec, row: str, metric: str) -> str:
    """A heading: the row, and the metric where there are several, or where it is of one rule."""
    several = len(comparison.metrics) > 1 or comparison.metrics[0].rule
    return f"{row} ({metric})" if several else row


def _differences(comparison: ComparisonSpec, notes: Sequence[str], frame: pd.DataFrame) -> Table:
    columns: dict[str, dict[str, Cell]] = {}
    for (row, metric, method), contrast in every_difference(comparison, frame).items():
        columns.setdefault(_name(comparison, row, metric), {})[method] = _show_difference(
            contrast, len(comparison.seeds)
        )
    title = (
        f"{comparison.title or comparison.name}: difference to {comparison.baseline_label} in percentage points "
        f"({', '.join(map(str, comparison.metrics))}), paired by seed"
    )
    methods = [method.label for method in comparison.methods if method.label != comparison.baseline_label]
    return _lay_out("differences", title, columns, methods, [*notes, _interval_legend(comparison)])


def _gains(comparison: ComparisonSpec, notes: Sequence[str], gains: Mapping[tuple[str, str, str], Difference]) -> Table:
    columns: dict[str, dict[str, Cell]] = {}
    for (row, figure, method), contrast in gains.items():
        columns.setdefault(f"{row} ({figure})", {})[method] = _show_difference(contrast, len(comparison.seeds))
    title = (
        f"{comparison.title or comparison.name}: what the exchange adds (percentage points): the rule minus its "
        f"local counterpart, taken from {comparison.control_label} (encoder minus encoder-local, pool minus "
        "pool-local), paired by seed"
    )
    methods = [method.label for method in comparison.methods if any(method.label == name for _, _, name in gains)]
    legends = [_interval_legend(comparison)]
    if any(figure.partition(" ")[0] == RULE for _, figure, _ in gains):
        # pool and pool-local both know them
        legends.append(
            "encoder-local uses the client's class shares and encoder does not: under label skew the exchange adds "
            "more than shown for encoder"
        )
    return _lay_out("gains", title, columns, methods, [*notes, *legends])


def _interval_legend(comparison: ComparisonSpec) -> str:
    if len(comparison.seeds) == 1:
        return "one seed gives no interval: differences may be due to chance"
    return (
        f"in brackets: {100 * CONFIDENCE:g} % t interval over seeds, not corrected for multiple comparisons; bold "
        "difference: significantly different from zero (paired t-test, 5 %, Holm-corrected for the number of methods)"
    )


def _describe_choice(choice: Choice) -> str:
    where = f"{choice.row}, {choice.method}"
    if not choice.chosen:
        return f"{where}: nothing is chosen while trials of its variants are missing"
    text = f"{where}: {choice.values(choice.chosen)}, chosen on validation samples among {len(choice.tried)}"
    ties = [choice.values(label) for label in choice.ties if label != choice.chosen]
    return f"{text}; equal to {'; '.join(ties)}: the first of them is taken" if ties else text


def _own_rules(comparison: ComparisonSpec, frame: pd.DataFrame) -> list[str]:
    """What the inference rule of a metric that names none is; and of methods whose rules differ what each gives, where
    the table is by the rules that all have."""
    by_own_rule = any(not metric.rule or metric.of_domain for metric in comparison.metrics)
    by_common_rules = any(metric.rule and metric.figure == "headline" for metric in comparison.metrics)
    rules = frame["rule"].dropna().unique()
    if not len(rules) or not (by_own_rule or by_common_rules):
        return []
    if len(rules) == 1:
        return [f"every method's own inference rule: {rules[0]}"]
    notes = []
    for row in comparison.rows:
        words = []
        for method, runs in by_method(frame, comparison, row.label).items():
            if len(runs):
                own_rule = " or ".join(runs["rule"].unique())
                headline = accuracy(summarise(runs["headline"]), len(comparison.seeds)) if by_common_rules else ""
                words.append(f"{method} ({own_rule}) {headline}".strip())
        gives = (
            "accuracy in % by each method's own inference rule"
            if by_common_rules
            else "each method's own inference rule"
        )
        notes.append(f"{row.label}: {gives}: {'; '.join(words)}")
    return notes


def _missing_controls(comparison: ComparisonSpec, frame: pd.DataFrame) -> list[str]:
    controls = " and ".join(without_control(comparison, frame))
    if not controls:
        return []
    remedy = "name an `encoder` for all methods" if comparison.control_label else "add `local` to the methods"
    return [f"what the exchange adds is not shown, because its control is missing: {controls} of `local`; {remedy}"]


def _test_samples(comparison: ComparisonSpec, frame: pd.DataFrame) -> list[str]:
    """On how many samples the figures were measured: one data set's, so that seeds are splits of it and no new data."""
    numbers = []
    for row in comparison.rows:
        counts = frame.loc[frame["row"] == row.label, TEST_SAMPLES].dropna()
        if len(counts):
            least, most = int(counts.min()), int(counts.max())
            numbers.append(f"{row.label} {least:,}" + (f" to {most:,}" if most > least else ""))
    if not numbers:
        return []
    of_seeds = "; seeds change only the split, not the data" if len(comparison.seeds) > 1 else ""
    return [f"test samples of all clients together: {', '.join(numbers)}{of_seeds}"]


def _unknown_domains(comparison: ComparisonSpec, frame: pd.DataFrame) -> list[str]:
    """A sentence for each domain that is asked for and that no finished run has, with those that there are."""
    prefix = f"{DOMAIN} "
    there = sorted(name.removeprefix(prefix) for name in frame.columns if name.startswith(prefix))
    asked = dict.fromkeys(metric.figure for metric in comparison.metrics if metric.of_domain)
    known = f"their domains are {', '.join(there)}" if there else "no data set here names any"
    return [f"no client is of the domain {name}: {known}" for name in asked if name not in there and len(frame)]


def _different_budgets(comparison: ComparisonSpec, frame: pd.DataFrame) -> list[str]:
    """A sentence for each row whose methods trained more or less than each other."""
    notes = []
    for row in comparison.rows:
        steps = {}
        for method, runs in by_method(frame, comparison, row.label).items():
            if mean := summarise(runs["gradient_steps"]):
                steps[method] = mean.mean
        if steps and min(steps.values()) < (1 - TOLERANCE) * max(steps.values()):
            steps_text = ", ".join(f"{method} {count:.4g}" for method, count in steps.items())
            notes.append(f"{row.label}: budgets differ ({steps_text} gradient steps per client per round)")
    return notes


def _tabulate_variants(comparison: ComparisonSpec, choices: Sequence[Choice]) -> Table:
    columns: dict[str, dict[str, Cell]] = {}
    for choice in choices:
        for label, value in choice.tried.items():
            tie = " (tie)" if label in choice.ties else ""
            cell = Cell(accuracy(value, len(comparison.seeds)) + tie, label == choice.chosen)
            columns.setdefault(choice.row, {})[label] = cell
    names = list(dict.fromkeys(label for choice in choices for label in choice.tried))
    title = f"{comparison.title or comparison.name}: accuracy of the variants on validation samples in %"
    legend = "bold variant: the one chosen for each data set; test samples were not used"
    return _lay_out("variants", title, columns, names, [legend])


def _show_difference(difference: Difference | None, seeds: int) -> Cell:
    """`+1.20 [+0.40, +2.00]`; with the number of seeds where some of the comparison's are missing."""
    if difference is None:
        return Cell(NONE)
    text = _points(difference.mean)
    if difference.low is not None and difference.high is not None and (difference.low or difference.high):
        text += f" [{_points(difference.low)}, {_points(difference.high)}]"
    return Cell(text + _some_seeds(difference.seeds, seeds), best=difference.significant)


def _points(share: float) -> str:
    return f"{100 * share:+.{DIGITS}f}"


def _costs(comparison: ComparisonSpec, notes: Sequence[str], frame: pd.DataFrame) -> Table:
    columns: dict[str, dict[str, Cell]] = {}
    for row in comparison.rows:
        for method, runs in by_method(frame, comparison, row.label).items():
            for name, text in _cost(runs, comparison).items():
                columns.setdefault(f"{row.label}, {name}", {})[method] = Cell(text)
    legends = [
        "M values per round: values exchanged per round, in millions (all clients, both directions; float32 only)",
        "steps: gradient steps per client per round",
    ]
    if comparison.target is not None:
        rule = comparison.metrics[0].curve_rule("each method's own rule")
        meaning = f"up to the first evaluation after round 0 whose mean accuracy by {rule} reaches it ({NONE}: never)"
        legends.append(f"to {100 * comparison.target:g} %: {meaning}")
    name = comparison.title or comparison.name
    title = f"{name}: cost of training: bytes in both directions (payload / on the wire) and gradient steps"
    return _lay_out("cost", title, columns, [method.label for method in comparison.methods], [*notes, *legends])


def _cost(runs: pd.DataFrame, comparison: ComparisonSpec) -> dict[str, str]:
    """What the runs of a method in a row took on average, in words; values a round where each has four bytes."""
    values, steps = runs["values"], summarise(runs["gradient_steps"])
    cost = {
        "whole run": _pair(runs[["payload_bytes", "wire_bytes"]]),
        "M values per round": f"{values.mean() / 1e6:.4g}" if len(values) and values.notna().all() else NONE,
        "steps": f"{steps.mean:.4g}" if steps else NONE,
    }
    if comparison.target is not None:
        reached = runs.dropna(subset="target_round")
        text = _pair(reached[["target_payload_bytes", "target_wire_bytes"]])
        if len(reached):
            text += f", round {reached['target_round'].mean():.3g}"
            text += _some_seeds(len(reached), len(comparison.seeds))
        cost[f"to {100 * comparison.target:g} %"] = text
    return cost


def accuracy(value: MeanStd | None, seeds: int) -> str:
    """`82.90 ± 0.46`; of one seed without spread; with the number of seeds where some are missing."""
    if value is None:
        return NONE
    within = "" if value.std is None else f" ± {100 * value.std:.{DIGITS}f}"
    return f"{100 * value.mean:.{DIGITS}f}{within}{_some_seeds(value.seeds, seeds)}"


def _some_seeds(some: int, seeds: int) -> str:
    return f" ({some} of {seeds} seeds)" if some < seeds else ""


def floor(frame: pd.DataFrame, row: str, name: str = MAJORITY) -> MeanStd | None:
    """The majority-class floor of a row: of each seed the mean over methods, each of which measures it in its round.

    Args:
        name: which, as `Metric.floor` has it; without it that by test samples.
    """
    return summarise(frame[frame["row"] == row].astype({name: float}).groupby("seed")[name].mean())


def _pair(sizes: pd.DataFrame) -> str:
    """Means of bytes, each as people read it."""
    return " / ".join(readable_size(round(mean)) for mean in sizes.mean()) if len(sizes) else NONE


def _lay_out(
    kind: str,
    title: str,
    columns: Mapping[str, Mapping[str, Cell]],
    methods: Sequence[str],
    notes: Sequence[str],
    paper: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """Methods across and rows down, or the other way round where that is the narrower table.

    Args:
        columns: row -> method -> cell. paper: the same of what a paper prints, which stands beside where there is any.
    """
    cells = pd.DataFrame(columns, index=list(dict.fromkeys(methods)), dtype=object)
    printed = pd.DataFrame(paper or {}, index=cells.index, columns=cells.columns, dtype=object).fillna("")
    if len(cells.columns) >= len(cells.index):
        cells, printed = cells.T, printed.T
    head, across = [""], []
    for name in cells:
        head.append(name)
        across.append([cell if isinstance(cell, Cell) else Cell(NONE) for cell in cells[name]])
        if any(printed[name]):
            head.append(PAPER)
            across.append([Cell(text) for text in printed[name]])
    lines = [[Cell(name), *line] for name, *line in zip(cells.index, *across, strict=True)]
    return Table(kind, title, head, lines, notes)


def _tex(content: Cell) -> str:
    text = _as_tex(content.text)
    return rf"\textbf{{{text}}}" if content.best else text


def _as_tex(text: str) -> str:
    """Text as LaTeX shows it again, minus signs as longer ones than hyphens."""
    return MINUS.sub("−", text).translate(TEX)
