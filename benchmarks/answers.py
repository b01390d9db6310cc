"""From the figures under benchmarks/results to the pages and pictures of docs/answers: no figure is typed.

    protosphere compare benchmarks/questions/own_classes.toml --data usps=../usps
    python -m benchmarks.answers keep own_classes FOLDER --command '...' --commit ...
    python -m benchmarks.answers    # all pages and pictures anew

A question is a comparison file, benchmarks/questions/NAME.toml, whose first comment is the question; NAME.md beside it
says in words what came out, and goes into the page as it stands. `keep` leaves every cell's figures in
benchmarks/results/NAME.csv, and where each row was measured in NAME.json, with a digest of what the file says of it;
rows and methods that FOLDER lacks stay as they are, methods only where the file is what they were measured by, and so
do other seeds of a row that the same commit has measured on such a machine. No page is made where a file has changed
since its rows were measured.
"""

import csv
import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, described_parser, table_head, table_row, where
from protosphere.comparison.frame import VALIDATION, summarise
from protosphere.comparison.paired import Difference, ahead, difference
from protosphere.comparison.spec import ComparisonSpec, read
from protosphere.comparison.tables import accuracy
from protosphere.comparison.variants import best_of, with_variants
from protosphere.record.metrics_lines import MAJORITY
from protosphere.reports import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUESTIONS = ROOT / "benchmarks" / "questions"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "answers"
# where the one table stands, between its marks
SHOWING = (ROOT / "README.md", ROOT / "docs" / "results.md")
MARKS = ("<!-- the one table, by python -m benchmarks.answers -->\n", "<!-- its end -->\n")
METRIC = "metric: "
PROTOCOL = "protocol"  # digest of what a row was measured by; missing where the file at that commit was another
# of a command, what says which cells, where the data lie and how many runs at a time
OPTIONS = re.compile(r""" --(?:jobs|methods|datasets|data|seeds)[ ]("[^"]*"|\S+)| --reuse""")
PARTS = re.compile(" --(?:methods|datasets|seeds) ")
OTHERS = "(the others)"
PANELS_ACROSS = 3
HEADLINE, OWN_RULE = "headline", " (each method's own rule)"
# metrics of the page's table, where the file's first one does not answer the question
ANSWERED_BY = {
    "own_classes": ["classifier selected"],
    "constants": ["headline", "classifier selected"],
}
WITHOUT_BYTES = {"constants", "ensemble"}  # whose answer has none of them
# metrics of a comparison in a public encoder's space
MODEL, FEATURES = "classifier selected", "discriminant selected"
OWN, SPACE = "encoder-local selected", "encoder selected"
OWN_POOL, POOLED = "pool-local selected", "pool selected"
# the questions of the one table, the rules of a private model there, and the methods whose line is of another rule
ONE_TABLE = ("methods", "held_out")
MODEL_RULES = (MODEL, FEATURES)
LINE_RULES = {"fedcgs": [SPACE], "protosphere": [POOLED]}
Cell = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """A question, as asked, and every cell that was measured for it."""

    name: str

    @cached_property
    def comparison(self) -> ComparisonSpec:
        """As its file has it, every variant a method."""
        return with_variants(read(QUESTIONS / f"{self.name}.toml"))

    @cached_property
    def question(self) -> str:
        """The file's first comment."""
        lines = (QUESTIONS / f"{self.name}.toml").read_text("utf-8").splitlines()
        head = itertools.takewhile(lambda line: line.startswith("#"), lines)
        return " ".join(line.removeprefix("#").strip() for line in head)

    @cached_property
    def cells(self) -> list[Cell]:
        """Of the CSV, those that are finished."""
        return [cell for cell in read_cells(RESULTS / f"{self.name}.csv") if cell["status"] == "completed"]

    @cached_property
    def measured(self) -> dict[str, dict[str, str]]:
        """Where and how each row: command, commit, machine."""
        sources: dict[str, dict[str, str]] = json.loads((RESULTS / f"{self.name}.json").read_text("utf-8"))
        return sources

    def protocol(self, row: str) -> str:
        """A digest of what the comparison's file says of a row: the settings, the data set's own, and those of the
        methods that were measured."""
        file = tomllib.loads((QUESTIONS / f"{self.name}.toml").read_text("utf-8"))
        labels = {cell["method"] for cell in self.cells if cell["row"] == row}
        labels |= {self.tried[label] for label in labels & self.tried.keys()}
        methods = [method for method in file["methods"] if _label(method, "strategy") in labels]
        datasets = [dataset for dataset in file.get("datasets", []) if _label(dataset, "dataset") == row]
        content = json.dumps([file.get("settings"), datasets, methods], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def refuse_other_protocols(self) -> None:
        """Stop where the comparison's file has changed since a row was measured."""
        for row in self.rows:
            protocol = self.measured[row].get(PROTOCOL, "")
            known_seeds = {*self.seeds(row)} <= {*self.comparison.seeds}
            if protocol and (protocol != self.protocol(row) or not known_seeds):
                raise SystemExit(
                    f"{QUESTIONS / self.name}.toml is not what {row!r} was measured by at commit "
                    f"{self.measured[row]['commit']}: measure that row anew, or put the file back."
                )

    @property
    def rows(self) -> list[str]:
        """Rows with a finished cell, in order."""
        return list(dict.fromkeys(cell["row"] for cell in self.cells))

    @property
    def methods(self) -> list[str]:
        """The same of methods."""
        return list(dict.fromkeys(cell["method"] for cell in self.cells))

    @property
    def metrics(self) -> list[str]:
        """By their names in the comparison."""
        return [str(metric) for metric in self.comparison.metrics]

    def cells_of(self, row: str, method: str) -> list[Cell]:
        """A cell a seed."""
        return [cell for cell in self.cells if (cell["row"], cell["method"]) == (row, method)]

    def column(self, row: str, method: str, name: str) -> dict[int, float | None]:
        """Seed -> what stands in a column."""
        return {int(cell["seed"]): float(cell[name]) if cell[name] else None for cell in self.cells_of(row, method)}

    def of(self, row: str, method: str, metric: str) -> dict[int, float | None]:
        """Seed -> figure."""
        return self.column(row, method, METRIC + metric)

    def mean(self, row: str, method: str, name: str) -> str:
        """Mean and deviation of a column over the seeds."""
        return accuracy(summarise(list(self.column(row, method, name).values())), len(self.comparison.seeds))

    def seeds(self, row: str) -> list[int]:
        """With which a row was measured, in ascending order."""
        return sorted({int(cell["seed"]) for cell in self.cells if cell["row"] == row})

    def mean_in_row(self, row: str, method: str, name: str) -> str:
        """The same under the row's heading, which says of how many seeds it is."""
        return accuracy(summarise(list(self.column(row, method, name).values())), len(self.seeds(row)))

    def mean_alone(self, row: str, method: str, name: str) -> str:
        """The same without the deviation, which the CSV has."""
        return self.mean_in_row(row, method, name).partition(" ±")[0]

    def heading(self, row: str) -> str:
        """A row's label, with the number of its seeds where it is not that of the file."""
        count, all_seeds = len(self.seeds(row)), len(self.comparison.seeds)
        return row if count == all_seeds else f"{row} ({count} of {all_seeds} seeds)"

    def against(self, row: str, method: str, metric: str, base: str = "") -> Difference | None:
        """To the baseline, or to another method, seed by seed."""
        return difference(self.of(row, method, metric), self.of(row, base or self.comparison.baseline_label, metric))

    @property
    def tried(self) -> dict[str, str]:
        """Each method that is a variant -> the method that it is a variant of."""
        return {entry.label: entry.varied_of for entry in self.comparison.methods if entry.varied_of}

    def chosen(self, row: str) -> set[str]:
        """The values with the highest accuracy on validation samples over the seeds, of each method that is varied."""
        spreads = {label: summarise(list(self.column(row, label, VALIDATION).values())) for label in self.tried}
        groups = [[label for label in spreads if self.tried[label] == of] for of in dict.fromkeys(self.tried.values())]
        return {best_of({label: spreads[label] for label in group}, len(self.comparison.seeds)) for group in groups}

    def kilobytes(self, method: str, rows: Sequence[str] = ()) -> str:
        """Of payload a round, both ways and all clients, over the seeds: the least and the most of these rows, else of
        all."""
        return _from_to(self.kilobytes_by_row(method, rows))

    def kilobytes_by_row(self, method: str, rows: Sequence[str] = ()) -> list[float]:
        """The means over the seeds, of the rows that have the method."""
        means = []
        for row in rows or self.rows:
            sizes = [int(cell["payload_bytes"]) / int(cell["rounds"]) for cell in self.cells_of(row, method)]
            means += [fmean(sizes) / 1e3] if sizes else []
        return means


def _from_to(numbers: Sequence[float]) -> str:
    """The least and the most of them; one where they are alike."""
    ends = dict.fromkeys(f"{end(numbers):,.1f}" for end in (min, max)) if numbers else {"-": None}
    return " to ".join(ends)


def _label(entry: str | dict[str, Any], name: str) -> str:
    """Of a method or a data set in a comparison's file."""
    return entry if isinstance(entry, str) else str(entry.get("label") or entry[name])


def read_cells(path: Path) -> list[Cell]:
    """The lines of a CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page(answer: Answer) -> str:
    """The page, as Markdown: what the question needs, and where the rest is."""
    title, mark, rest = answer.question.partition("?")
    outcome, base = QUESTIONS / f"{answer.name}.md", answer.comparison.baseline_label
    csv_file = f"benchmarks/results/{answer.name}.csv"
    lines = [f"# {title}{mark}", ""]
    lines += [rest.strip(), ""] if rest.strip() else []
    lines += [outcome.read_text("utf-8").strip(), ""] if outcome.exists() else []
    table = TABLES.get(answer.name, answer_table)
    lines += [*table(answer), ""]
    alt_text = f"Test accuracy minus that of `{base}` in percentage points, by rule, with 95 % intervals"
    lines += [f"![{alt_text}]({answer.name}.svg)", ""]
    lines += [
        f"**Measured** by {sources(answer)} Every rule and seed: [CSV](../../{csv_file}); whole commands: "
        f"[JSON](../../{csv_file.removesuffix('csv')}json); [how to read](../results.md#how-to-read-a-table).",
    ]
    return "\n".join(lines) + "\n"


def sources(answer: Answer) -> str:
    """Each command but for its options, which the JSON has, with the rows that it gave; what holds for all of them is
    said once."""
    rows_of: dict[tuple[str, str, str, str], list[str]] = {}
    in_parts = ", in parts" * any(PARTS.search(source["command"]) for source in answer.measured.values())
    for row in answer.rows:
        source = answer.measured[row]
        commit = f"commit {source['commit']}" + " (with an earlier version of that file)" * (PROTOCOL not in source)
        command = f"`{OPTIONS.sub('', source['command'])}`" + in_parts
        rows_of.setdefault((command, commit, _seeds(answer, row), source["machine"]), []).append(row)
    common = [values[0] for values in zip(*rows_of, strict=True) if len(set(values)) == 1]
    if len(rows_of) == 1:
        return f"{', '.join(common)}."
    others = max(rows_of.values(), key=len)
    is_longest = sum(len(rows) == len(others) for rows in rows_of.values()) == 1
    parts = []
    for facts, rows in rows_of.items():
        names = [shown(row).removesuffix(" samples per client") for row in rows]
        prefix = "the others: " if rows is others and is_longest else f"{', '.join(names)}: "
        parts.append(prefix + ", ".join(fact for fact in facts if fact not in common))
    # the others stand last
    parts.sort(key=lambda part: part.startswith("the others: "))
    whole = ", ".join(common)
    return f"{'; '.join([whole, *parts] if whole.startswith('`') else [*parts, f'all: {whole}'])}."


def _seeds(answer: Answer, row: str) -> str:
    """Those of a row, in words."""
    seeds = answer.seeds(row)
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    in_turn = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"seeds {seeds[0]} to {seeds[-1]}" if in_turn else f"seeds {', '.join(map(str, seeds))}"


def answer_table(answer: Answer) -> Iterator[str]:
    """By the metrics that answer the question: the baseline's accuracy, and how far each method lies from it."""
    base = answer.comparison.baseline_label
    metrics = ANSWERED_BY.get(answer.name, answer.metrics[:1])
    columns = list(itertools.product(answer.rows, metrics))
    chosen = {row: answer.chosen(row) for row in answer.rows}
    note = "; *chosen*: the value with the highest accuracy on validation samples" if answer.tried else ""
    rules = " and ".join(f"`{metric}`{OWN_RULE * (metric == HEADLINE)}" for metric in metrics)
    yield f"By {rules}: accuracy of `{base}` in %; for the others, the difference to it in percentage points{note}."
    yield ""
    heads = [shown(row) if len(metrics) == 1 else f"{shown(row)}: `{metric}`" for row, metric in columns]
    with_bytes = answer.name not in WITHOUT_BYTES
    yield table_head("method", *heads, *["kB per round"] * with_bytes)
    for method in answer.methods:
        cells = [f"`{method.replace(' = ', '=')}`"]
        for row, metric in columns:
            if method == base:
                cells.append(answer.mean(row, method, METRIC + metric))
                continue
            mark = " *chosen*" if method in chosen[row] and metric == metrics[0] else ""
            cells.append(interval(answer.against(row, method, metric)) + mark)
        yield table_row([*cells, *[answer.kilobytes(method)] * with_bytes])


def exchange_table(answer: Answer) -> Iterator[str]:
    """Of the baseline, which has all of these rules, a line a row: its own discriminant, its pool, what the exchange
    adds to the pool of `local`, where that was measured, and how the pool stands to the best of its parts; then the
    shared classifier of each method, where all of them were measured."""
    base, control = answer.comparison.baseline_label, answer.comparison.control_label
    parts = {MODEL: "private model", OWN: "own", SPACE: "shared"}
    is_controlled = any(answer.of(row, control, OWN_POOL) for row in answer.rows)
    yield f"`{base}`: mean accuracy in %, and differences in points. The last column names the best part on average."
    yield ""
    heads = [*map(_rule, (OWN, POOLED)), *["exchange adds"] * is_controlled, "minus best part"]
    yield table_head("data, samples per client", *heads)
    for row in answer.rows:
        figures = {name: answer.of(row, base, name) for name in (*parts, POOLED)}
        if not figures[POOLED]:
            continue
        # the best part by its mean: whoever chooses a part for all seeds
        best = max(parts, key=lambda name: fmean(value or 0.0 for value in figures[name].values()))
        cells = [answer.mean_alone(row, base, METRIC + name) for name in (OWN, POOLED)]
        if is_controlled:
            cells.append(interval(difference(figures[POOLED], answer.of(row, control, OWN_POOL))))
        gap = interval(difference(figures[POOLED], figures[best]))
        yield table_row([_sized(row), *cells, f"{gap} {parts[best]}"])
    yield ""
    if is_controlled:
        yield f"What the exchange adds is `pool` minus the `pool-local` of `{control}`, seed by seed."
    else:
        yield "What the exchange adds is not shown: its control, `pool-local` of `local`, was not measured."
    measured = {row: [m for m in answer.methods if any(answer.of(row, m, SPACE).values())] for row in answer.rows}
    most = max(map(len, measured.values()))
    # rows of which nearly all methods were measured, and methods that were measured in all of these
    compared = [row for row, methods in measured.items() if 2 * len(methods) > most]
    family = [method for method in answer.methods if all(method in measured[row] for row in compared)]
    yield ""
    yield f"Accuracy in % of the shared classifier alone ({_rule(SPACE)}), which knows classes that a client lacks."
    yield ""
    yield table_head("data, samples per client", *[f"`{method}`" for method in family])
    for row in compared:
        best_method = ahead({method: answer.of(row, method, SPACE) for method in family})
        cells = [bold(answer.mean_alone(row, method, METRIC + SPACE), method == best_method) for method in family]
        yield table_row([_sized(row), *cells])


def tables_by_rule(answer: Answer) -> Iterator[str]:
    """A table a row of the comparison: each method's accuracy by every rule, and its bytes; a rule by which all methods
    have the same figure is a sentence."""
    for row in answer.rows:
        methods = [method for method in answer.methods if answer.cells_of(row, method)]
        figures = {metric: {method: answer.of(row, method, metric) for method in methods} for metric in answer.metrics}
        same = []
        for metric, by_method in figures.items():
            first, *others = by_method.values()
            if any(first.values()) and all(other == first for other in others):
                same.append(metric)
        metrics = [metric for metric in answer.metrics if metric not in same]
        yield f"**{shown(answer.heading(row))}**, accuracy in %. Bold: ahead of every other method by the same rule."
        yield ""
        yield table_head("method", *map(_rule, metrics), "kB per round")
        leaders = {metric: ahead(figures[metric]) for metric in metrics}
        for method in methods:
            means = {metric: answer.mean_in_row(row, method, METRIC + metric) for metric in metrics}
            cells = [bold(mean, method == leaders[metric]) for metric, mean in means.items()]
            yield table_row([f"`{method}`", *cells, answer.kilobytes(method, [row])])
        alike = [
            f"{_rule(metric)}: {answer.mean_in_row(row, methods[0], METRIC + metric)} for every method."
            for metric in same
        ]
        yield ""
        yield " ".join([*alike, f"Majority-class baseline: {answer.mean_in_row(row, methods[0], MAJORITY)}."])
        if row != answer.rows[-1]:
            yield ""


def one_table(shown_answers: Sequence[Answer]) -> Iterator[str]:
    """A line a method, a column a data set: means over the seeds by one rule, or by several.

    Args:
        shown_answers: of the same methods and rules, on other data.
    """
    first, columns = shown_answers[0], [(answer, row) for answer in shown_answers for row in answer.rows]
    base = first.comparison.baseline_label
    lines = [(base, MODEL_RULES), (base, [OWN]), (base, [OWN_POOL])]
    lines += [(method, LINE_RULES.get(method, MODEL_RULES)) for method in first.methods if method != base]
    headings = [answer.heading(row) for answer, row in columns]
    yield table_head("method", "inference rule", *headings, "kB per round", left=2)
    floors = [answer.mean_alone(row, base, MAJORITY) for answer, row in columns]
    yield table_row(["majority class", "", *floors, "0.0"])
    for method, metrics in lines:
        cells = [
            " / ".join(answer.mean_alone(row, method, METRIC + metric) for metric in metrics) for answer, row in columns
        ]
        sizes = _from_to([size for answer in shown_answers for size in answer.kilobytes_by_row(method)])
        yield table_row([f"`{method}`", " / ".join(map(_rule, metrics)), *cells, sizes])


def with_one_table(page_text: str) -> str:
    """A page with the table between its marks."""
    table = one_table([answer for answer in map(Answer, ONE_TABLE) if (RESULTS / f"{answer.name}.csv").exists()])
    before, _, rest = page_text.partition(MARKS[0])
    return before + MARKS[0] + "\n".join(table) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2]


TABLES: dict[str, Callable[[Answer], Iterator[str]]] = {
    "default": exchange_table,
    "methods": tables_by_rule,
    "held_out": tables_by_rule,
}


def _rule(metric: str) -> str:
    """Of a metric on selected rounds, as Markdown."""
    return f"`{metric.removesuffix(' selected')}`"


def _sized(row: str) -> str:
    """The label of a row that says how many samples a client has, without the words for it."""
    return shown(row).replace(": ", ", ").removesuffix(" samples per client")


def shown(row: str) -> str:
    """The label of a row of the comparison, in today's words: labels of stored figures say rows, and "a client"."""
    return re.sub(r"\brows\b", "samples", row).replace("samples a client", "samples per client")


def bold(text: str, whether: bool) -> str:
    """In Markdown."""
    return f"**{text}**" if whether else text


def interval(apart: Difference | None) -> str:
    """A difference in points with its interval, bold where that excludes zero."""
    if apart is None:
        return "-"
    mean = f"{100 * apart.mean:+.1f}"
    if apart.low is None or apart.high is None:
        return mean
    return bold(f"{mean} [{100 * apart.low:+.1f}, {100 * apart.high:+.1f}]", apart.apart)


def picture(answer: Answer) -> str:
    """Every method's difference to the baseline with its interval, as SVG: a panel a row, a colour a metric."""
    rows, methods = answer.rows, [method for method in answer.methods if method != answer.comparison.baseline_label]
    metrics = [metric for metric in answer.metrics if _differs(answer, metric)]
    label_width = max(2.6, 1 + 0.08 * max(map(len, methods)))  # inches
    down = ceil(len(rows) / PANELS_ACROSS)
    across = ceil(len(rows) / down)
    with canvas.figure((label_width + 2.6 * across, 0.5 + down * (0.8 + 0.3 * len(methods)))) as drawing:
        panels = drawing.subplots(down, across, sharey=True, squeeze=False).flatten()
        for axes in panels[len(rows) :]:
            axes.remove()
        for axes, row in zip(panels, rows, strict=False):
            axes.axvline(0, color=canvas.SOFT, linewidth=1)
            for place in range(len(metrics)):
                draw_intervals(axes, answer, row, metrics, methods, place)
            axes.set_title(shown(answer.heading(row)).replace(" (", "\n("))
            axes.set_xlabel("points")
        panels[0].set_yticks(range(len(methods)), methods)
        panels[0].invert_yaxis()
        handles = panels[0].get_legend_handles_labels()
        drawing.legend(*handles, loc="outside lower center", ncols=min(len(metrics), 2 * across))
        return canvas.svg(drawing)


def _differs(answer: Answer, metric: str) -> bool:
    """Whether any method differs from the baseline by it: where the baseline has no such figure there is none to be
    less by, and by a rule without an exchange all may be alike."""
    for row, method in itertools.product(answer.rows, answer.methods):
        apart = answer.against(row, method, metric)
        if apart is not None and apart.mean:
            return True
    return False


def draw_intervals(
    axes: "Axes", answer: Answer, row: str, metrics: Sequence[str], methods: Sequence[str], place: int
) -> None:
    """Of one metric, all methods'."""
    differences = [answer.against(row, method, metrics[place]) for method in methods]
    points = [
        (number + 0.22 * (place - (len(metrics) - 1) / 2), apart.mean, apart.low, apart.high)
        for number, apart in enumerate(differences)
        if apart is not None
    ]
    lower = [100 * (mean - (mean if low is None else low)) for _, mean, low, _ in points]
    upper = [100 * ((mean if high is None else high) - mean) for _, mean, _, high in points]
    axes.errorbar(
        [100 * mean for _, mean, _, _ in points],
        [height for height, *_ in points],
        xerr=[lower, upper],
        fmt=canvas.MARKERS[place],
        color=canvas.COLOURS[place],
        markersize=4,
        linewidth=1.3,
        label=metrics[place],
    )


def _beside(old: str, commit: str, methods: set[str]) -> str:
    """The commits of a row of which some methods were measured anew, and others earlier."""
    earlier = re.findall(r"(\S+) \(([^()]+)\) and ", old)
    others = re.sub(r"\S+ \([^()]+\) and ", "", old).removesuffix(OTHERS).strip()
    parts = [f"{commit} ({', '.join(sorted(methods))})"]
    for old_commit, names in earlier:
        remaining = [name for name in names.split(", ") if name not in methods]
        parts += [f"{old_commit} ({', '.join(remaining)})"] if remaining else []
    return " and ".join([*parts, f"{others} {OTHERS}"])


def keep(name: str, folder: Path, command: str, commit: str) -> None:
    """A comparison's figures, and where they were measured, under benchmarks/results. A row that is not finished is
    left out: its methods would not have the same seeds. Of a row's methods that FOLDER lacks the figures stay, and
    of a row that was measured by the same commit, torch and Python those of other seeds, too."""
    cells = read_cells(folder / "table.csv")
    unfinished = {cell["row"] for cell in cells if cell["status"] != "completed"}
    cells = [cell for cell in cells if cell["row"] not in unfinished]
    if not cells:
        raise SystemExit(f"{folder} has no finished row; protosphere compare --resume {folder} goes on with it.")
    RESULTS.mkdir(exist_ok=True)
    answer, exists = Answer(name), (RESULTS / f"{name}.csv").exists()
    measured, machine = answer.measured if exists else {}, where().partition(", ")[2]
    methods_by_row: dict[str, set[str]] = {}
    for cell in cells:
        methods_by_row.setdefault(cell["row"], set()).add(cell["method"])
    new_keys = {(cell["row"], cell["method"], cell["seed"]) for cell in cells}
    rows_of_program = {
        row for row, source in measured.items() if (source["commit"], source["machine"]) == (commit, machine)
    }
    old_cells = []
    for cell in answer.cells if exists else []:
        is_other_seed = cell["row"] in rows_of_program and (cell["row"], cell["method"], cell["seed"]) not in new_keys
        if is_other_seed or cell["method"] not in methods_by_row.get(cell["row"], ()):
            old_cells.append(cell)
    cells += old_cells
    order = [row.label for row in answer.comparison.rows]
    if strange := sorted({cell["row"] for cell in cells}.difference(order)):
        raise SystemExit(f"{QUESTIONS / name}.toml has no row {', '.join(strange)}; its rows are {', '.join(order)}.")
    methods = [method.label for method in answer.comparison.methods]
    cells.sort(key=lambda cell: (order.index(cell["row"]), methods.index(cell["method"]), int(cell["seed"])))
    measured_now: list[str] = []
    for row, row_methods in methods_by_row.items():
        row_commit, is_known = commit, True
        if any(cell["row"] == row for cell in old_cells):
            if measured[row].get(PROTOCOL, "") not in ("", answer.protocol(row)):
                raise SystemExit(
                    f"{QUESTIONS / name}.toml is not what the other methods of {row!r} were measured by at commit "
                    f"{measured[row]['commit']}: measure all of that row anew, or put the file back."
                )
            is_known = PROTOCOL in measured[row]
            if row not in rows_of_program:
                row_commit = _beside(measured[row]["commit"], commit, row_methods)
        measured[row] = {"command": command, "commit": row_commit, "machine": machine}
        if is_known:
            measured_now.append(row)
    with (RESULTS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        # where a run lay on that machine is no figure
        columns = [column for column in dict.fromkeys(itertools.chain(*cells)) if column != "run"]
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(cells)
    new_answer = Answer(name)
    for row in measured_now:
        measured[row][PROTOCOL] = new_answer.protocol(row)
    measured = {row: measured[row] for row in order if row in measured}
    (RESULTS / f"{name}.json").write_text(json.dumps(measured, indent=1) + "\n", "utf-8")


def answers() -> list[Answer]:
    """All for which something was measured."""
    return [Answer(path.stem) for path in sorted(RESULTS.glob("*.csv"))]


def main() -> None:
    """Keep a comparison, or write all pages."""
    parser = described_parser(__doc__)
    keep_parser = parser.add_subparsers(dest="command_name").add_parser("keep")
    keep_parser.add_argument("name")
    keep_parser.add_argument("folder", type=Path)
    keep_parser.add_argument("--command", required=True, help="by which it was measured")
    keep_parser.add_argument("--commit", required=True, help="of the program that measured it")
    options = parser.parse_args()
    if options.command_name == "keep":
        keep(options.name, options.folder, options.command, options.commit)
    PAGES.mkdir(exist_ok=True)
    for answer in answers():
        answer.refuse_other_protocols()
        (PAGES / f"{answer.name}.md").write_text(page(answer), "utf-8")
        (PAGES / f"{answer.name}.svg").write_text(picture(answer), "utf-8")
        print(PAGES / f"{answer.name}.md")
    for path in SHOWING:
        path.write_text(with_one_table(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
