"""A comparison's tables: on the console, as Markdown and as LaTeX. One layout, three ways to write it down."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.table import Table
from rich.text import Text

from protosphere.comparison.budget import differ, left_over
from protosphere.comparison.figures import DIGITS, Result, Spread, by_method, by_seed, differences, percent, spread
from protosphere.comparison.paired import CONFIDENCE, MOST_SEEDS, Difference, ahead
from protosphere.comparison.plan import Comparison
from protosphere.comparison.sweep import Choice
from protosphere.record.metrics_lines import readable_size

FLOOR = "majority class"
PAPER = "paper"
NONE = "-"
TEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{letter: f"$\\{name}$" for letter, name in zip("αβγλμ", ("alpha", "beta", "gamma", "lambda", "mu"), strict=True)},
}


@dataclass(frozen=True)
class Shown:
    """One cell of a table; `best` where it stands out."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Column:
    """One row of the comparison by one figure: by method ours, and what the paper prints."""

    cells: Mapping[str, Shown]
    printed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A table before it is written: the first entry of a line is its heading."""

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[Shown]]
    notes: Sequence[str] = ()


def grids(
    comparison: Comparison, scaled: Sequence[str], cell_results: Sequence[Result], choices: Sequence[Choice] = ()
) -> list[Grid]:
    """The accuracies, the differences to the baseline where there is another method, what a sweep has tried, the bytes.

    Args:
        scaled: what was made smaller, in words; shown under every table.
        choices: what was chosen of methods that were swept; comparison and cell_results have these once, see `tuned`.
    """
    if scaled and comparison.paper:
        comparison = replace(comparison, paper=())
        scaled = [*scaled, "the paper's figures are left out: they are of its own settings, unscaled"]
    companions = [
        (cell_result.cell, cell_result.summary["companion"])
        for cell_result in cell_results
        if "companion" in cell_result.summary
    ]
    companion_notes = dict.fromkeys(f"{cell.row}, {cell.method}: with {companion}" for cell, companion in companions)
    notes = [
        *scaled,
        *companion_notes,
        *map(_describe_choice, choices),
        *([comparison.note] if comparison.note else []),
    ]
    notes += ["epochs scaled by --equal-steps"] if comparison.equal_steps else []
    notes += _different_budgets(comparison, cell_results)
    apart = [_differences(comparison, notes, cell_results)] if len(comparison.methods) > 1 else []
    tried = [_tabulate_sweep(comparison, scaled, choices)] if choices else []
    return [_accuracies(comparison, notes, cell_results), *apart, *tried, _bytes(comparison, notes, cell_results)]


def console(grid: Grid) -> Table:
    """For a terminal, without title and notes, which would be broken to its width."""
    table = Table(box=box.SIMPLE_HEAD)
    for index, name in enumerate(grid.head):
        table.add_column(Text(name), justify="right" if index else "left")
    for line in grid.lines:
        table.add_row(*(Text(cell.text, "bold" if cell.best else "") for cell in line))
    return table


def markdown(grids: Sequence[Grid]) -> str:
    """GitHub's tables, what stands out in bold."""

    def cell(content: Shown) -> str:
        text = re.sub(r"[\\|*<`]", r"\\\g<0>", content.text)
        return f"**{text}**" if content.best else text

    parts = []
    for grid in grids:
        lines = [[Shown(name) for name in grid.head], *grid.lines]
        rows = [f"| {' | '.join(map(cell, line))} |" for line in lines]
        rows.insert(1, "|---" + "|---:" * (len(grid.head) - 1) + "|")
        parts.append("\n\n".join([grid.title, "\n".join(rows), *grid.notes]))
    return "\n\n".join(parts) + "\n"


def latex(grids: Sequence[Grid]) -> str:
    """Tables for `booktabs`, what stands out in \\textbf."""
    parts = ["% \\usepackage{booktabs}"]
    for grid in grids:
        rows = [" & ".join(_tex(cell) for cell in line) + r" \\" for line in grid.lines]
        head = " & ".join(_tex(Shown(name)) for name in grid.head) + r" \\"
        caption = " ".join(f"{_escape(sentence.rstrip('.'))}." for sentence in (grid.title, *grid.notes))
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering",
                    rf"\caption{{{caption}}}",
                    rf"\begin{{tabular}}{{l{'r' * (len(grid.head) - 1)}}}",
                    r"\toprule",
                    head,
                    r"\midrule",
                    *rows,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _accuracies(comparison: Comparison, notes: Sequence[str], cell_results: Sequence[Result]) -> Grid:
    seeds = len(comparison.seeds)
    columns = {}
    for row in comparison.rows:
        runs = by_method(cell_results, row.label, comparison)
        for index, metric in enumerate(comparison.metrics):
            spreads = {
                method: spread([cell_result.values[index] for cell_result in method_results])
                for method, method_results in runs.items()
            }
            best = ahead(by_seed(cell_results, row.label, index, comparison))
            cells = {method: Shown(accuracy(value, seeds), method == best) for method, value in spreads.items()}
            cells[FLOOR] = Shown(accuracy(floor(cell_results, row.label), seeds))
            printed = {
                paper_figure.method: f"{paper_figure.accuracy:.{DIGITS}f}"
                for paper_figure in comparison.paper
                if (paper_figure.row, paper_figure.metric) == (row.label, str(metric))
            }
            name = f"{row.label} ({metric})" if len(comparison.metrics) > 1 else row.label
            columns[name] = Column(cells, printed)
    if any(column.printed for column in columns.values()):
        notes = [*notes, "paper: what the paper's table prints, not measured here"]
    over = f"mean ± sample standard deviation (ddof 1) over {seeds} seeds" if seeds > 1 else "one seed"
    if seeds > 1 and len(comparison.methods) > 1:
        notes = [*notes, "bold: apart from every other method seed by seed, as the next table counts it"]
    metrics = ", ".join(map(str, comparison.metrics))
    title = f"{comparison.title or comparison.name}: accuracy in % ({metrics}), {over}"
    return _lay_out(title, columns, [*(method.label for method in comparison.methods), FLOOR], notes)


def _differences(comparison: Comparison, notes: Sequence[str], cell_results: Sequence[Result]) -> Grid:
    columns = {}
    for row in comparison.rows:
        for index, metric in enumerate(comparison.metrics):
            differences_by_method = differences(cell_results, row.label, index, comparison)
            name = f"{row.label} ({metric})" if len(comparison.metrics) > 1 else row.label
            columns[name] = Column(
                {method: _show_difference(difference) for method, difference in differences_by_method.items()}
            )
    if len(comparison.seeds) > 1:
        seed_notes = [
            f"in brackets: the {100 * CONFIDENCE:g} % interval over seeds by Student's t; bold where it leaves zero "
            "out, else with how many seeds it would, if mean and spread stayed as they are"
        ]
    else:
        seed_notes = ["of one seed there is no interval: what differs may be chance"]
    title = (
        f"{comparison.title or comparison.name}: difference to {comparison.baseline_label} in points of accuracy "
        f"({', '.join(map(str, comparison.metrics))}), seed by seed"
    )
    methods = [method.label for method in comparison.methods if method.label != comparison.baseline_label]
    return _lay_out(title, columns, methods, [*notes, *seed_notes])


def _describe_choice(choice: Choice) -> str:
    where = f"{choice.row}, {choice.method}"
    if not choice.chosen:
        return f"{where}: nothing is chosen while runs of its sweep are missing"
    text = f"{where}: {choice.values(choice.chosen)}, chosen on validation samples among {len(choice.tried)}"
    ties = [choice.values(label) for label in choice.ties if label != choice.chosen]
    return f"{text}; equal to {'; '.join(ties)}: the first of equals stands" if ties else text


def _different_budgets(comparison: Comparison, cell_results: Sequence[Result]) -> list[str]:
    """A sentence for each row whose methods trained more or less than each other."""
    notes = []
    remedy = "--equal-steps scales epochs so that they do not"
    if comparison.equal_steps:
        remedy = f"left over: {left_over(str(entry.settings['strategy']) for entry in comparison.methods)}"
    for row in comparison.rows:
        runs_by_method = by_method(cell_results, row.label, comparison)
        steps = {method: mean.mean for method, runs in runs_by_method.items() if (mean := _mean_steps(runs))}
        if differ(list(steps.values())):
            steps_text = ", ".join(f"{method} {count:.4g}" for method, count in steps.items())
            notes.append(f"{row.label}: budgets differ, in gradient steps a client and round: {steps_text}; {remedy}")
    return notes


def _mean_steps(runs: Sequence[Result]) -> Spread | None:
    return spread([run.summary.get("gradient_steps") for run in runs])


def _steps(runs: Sequence[Result]) -> str:
    mean = _mean_steps(runs)
    return NONE if mean is None else f"{mean.mean:.4g}"


def _tabulate_sweep(comparison: Comparison, scaled: Sequence[str], choices: Sequence[Choice]) -> Grid:
    seeds = len(comparison.seeds)
    columns: dict[str, Column] = {}
    for choice in choices:
        cells = {
            label: Shown(accuracy(spread, seeds) + (" (tie)" if label in choice.ties else ""), label == choice.chosen)
            for label, spread in choice.tried.items()
        }
        before = columns.get(choice.row, Column({}))
        columns[choice.row] = Column({**before.cells, **cells})
    names = list(dict.fromkeys(label for choice in choices for label in choice.tried))
    title = f"{comparison.title or comparison.name}: the sweep's accuracy on validation samples in %"
    legend = "bold: chosen, in each row for itself; the test samples played no part"
    return _lay_out(title, columns, names, [*scaled, legend])


def _show_difference(difference: Difference | None) -> Shown:
    """`+1.20 [+0.40, +2.00]`, or `+0.10 [-0.80, +1.00], 41 seeds`."""
    if difference is None:
        return Shown(NONE)
    if difference.low is None or difference.high is None:
        return Shown(_points(difference.mean))
    text = f"{_points(difference.mean)} [{_points(difference.low)}, {_points(difference.high)}]"
    if difference.apart:
        return Shown(text, best=True)
    return Shown(f"{text}, {f'{difference.needed} seeds' if difference.needed else f'> {MOST_SEEDS} seeds'}")


def _points(share: float) -> str:
    return f"{100 * share:+.{DIGITS}f}"


def _bytes(comparison: Comparison, notes: Sequence[str], cell_results: Sequence[Result]) -> Grid:
    columns = {}
    target = comparison.target
    for row in comparison.rows:
        runs = by_method(cell_results, row.label, comparison)
        columns[f"{row.label}, whole run"] = Column(
            {name: Shown(_format_bytes(method_results)) for name, method_results in runs.items()}
        )
        columns[f"{row.label}, M a round"] = Column(
            {name: Shown(_millions(method_results)) for name, method_results in runs.items()}
        )
        columns[f"{row.label}, steps"] = Column(
            {name: Shown(_steps(method_results)) for name, method_results in runs.items()}
        )
        if target is not None:
            reached = {
                name: Shown(_to_target(method_results, len(comparison.seeds))) for name, method_results in runs.items()
            }
            columns[f"{row.label}, to {100 * target:g} %"] = Column(reached)
    notes = [
        *notes,
        "M a round: millions of values in both directions, all clients, as float32 sends them",
        "steps: gradient steps a client and round",
    ]
    if target is not None:
        rule = comparison.metrics[0].rule or "each method's own rule"
        meaning = f"up to the first evaluation after round 0 whose mean accuracy by {rule} reaches it; {NONE} for never"
        notes = [*notes, f"to {100 * target:g} %: {meaning}"]
    name = comparison.title or comparison.name
    title = f"{name}: cost of training: bytes, payload / wire, both directions, and gradient steps"
    return _lay_out(title, columns, [method.label for method in comparison.methods], notes)


def accuracy(value: Spread | None, seeds: int) -> str:
    """`82.90 ± 0.46`; of one seed without spread; with the number of seeds where some are missing."""
    if value is None:
        return NONE
    within = f" ± {percent(value.std)}" if value.std is not None else ""
    return percent(value.mean) + within + (f" ({value.seeds} of {seeds} seeds)" if value.seeds < seeds else "")


def floor(cell_results: Sequence[Result], row: str) -> Spread | None:
    """The majority-class floor of a row: of each seed the mean over methods, each of which measures it in its round."""
    by_seed: dict[int, list[float]] = {}
    for cell_result in cell_results:
        if cell_result.cell.row == row and cell_result.floor is not None:
            by_seed.setdefault(cell_result.cell.seed, []).append(cell_result.floor)
    return spread([sum(values) / len(values) for values in by_seed.values()])


def _format_bytes(runs: Sequence[Result]) -> str:
    return _pair([(cell_result.payload, cell_result.wire) for cell_result in runs])


def _millions(runs: Sequence[Result]) -> str:
    """Values of payload a round, where each has four bytes."""
    if not runs or any(_format(cell_result) != "float32" for cell_result in runs):
        return NONE
    values = [cell_result.payload / 4 / max(cell_result.summary["rounds"], 1) for cell_result in runs]
    return f"{sum(values) / len(values) / 1e6:.4g}"


def _format(run: Result) -> str:
    return str(run.summary.get("settings", {}).get("wire-dtype", "float32"))


def _to_target(runs: Sequence[Result], seeds: int) -> str:
    reached = [reach.reached for reach in runs if reach.reached]
    if not reached:
        return NONE
    rounds = sum(reach.of_round for reach in reached) / len(reached)
    some = f" ({len(reached)} of {seeds} seeds)" if len(reached) < seeds else ""
    return f"{_pair([(reach.payload, reach.wire) for reach in reached])}, round {rounds:.3g}{some}"


def _pair(sizes: Sequence[tuple[int, int]]) -> str:
    if not sizes:
        return NONE
    return " / ".join(readable_size(round(sum(amounts) / len(sizes))) for amounts in zip(*sizes, strict=True))


def _lay_out(title: str, columns: Mapping[str, Column], names: Sequence[str], notes: Sequence[str]) -> Grid:
    """Methods across and rows down, or the other way round where that is the narrower table.

    Args:
        names: of the methods, in order.
    """
    if len(columns) < len(names):
        paper = {name: bool(column.printed) for name, column in columns.items()}
        down = {method: [(columns[name], method, paper[name]) for name in columns] for method in names}
    else:
        paper = {method: any(method in column.printed for column in columns.values()) for method in names}
        down = {name: [(column, method, paper[method]) for method in names] for name, column in columns.items()}
    head = ["", *(part for name, printed in paper.items() for part in ([name, PAPER] if printed else [name]))]
    lines = [[Shown(name), *(part for cell in line for part in _parts(*cell))] for name, line in down.items()]
    return Grid(title, head, lines, notes)


def _parts(column: Column, method: str, with_paper: bool) -> list[Shown]:
    cells = [column.cells.get(method, Shown(NONE))]
    return [*cells, Shown(column.printed.get(method, ""))] if with_paper else cells


def _tex(content: Shown) -> str:
    text = _escape(content.text)
    return rf"\textbf{{{text}}}" if content.best else text


def _escape(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)
