"""From the figures under benchmarks/results to the pages and pictures of docs/answers: no figure is typed.

    protosphere compare benchmarks/questions/own_classes.toml --data usps=../usps
    python -m benchmarks.answers keep own_classes FOLDER --command '...' --commit ...
    python -m benchmarks.answers    # all pages and pictures anew

A question is a comparison file, benchmarks/questions/NAME.toml, whose first comment is the question; NAME.md beside it
says in words what came out, and goes into the page as it stands. `keep` leaves every cell's figures in
benchmarks/results/NAME.csv, and where each row was measured in NAME.json; rows that FOLDER lacks stay as they are.
"""

import argparse
import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import ROOT, where
from protosphere.comparison.figures import VALIDATION, spread
from protosphere.comparison.paired import Difference, ahead, difference
from protosphere.comparison.plan import Comparison, read
from protosphere.comparison.sweep import best_of, swept
from protosphere.comparison.tables import accuracy
from protosphere.reports import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUESTIONS, RESULTS, PAGES = (
    ROOT / "benchmarks" / "questions",
    ROOT / "benchmarks" / "results",
    ROOT / "docs" / "answers",
)
METRIC = "metric: "
PANELS_ACROSS = 3
SILENT = ("local", "frame")  # train alone, and towards targets that come from the seed


@dataclass(frozen=True)
class Answer:
    """A question, as asked, and every cell that was measured for it."""

    name: str

    @cached_property
    def comparison(self) -> Comparison:
        """As its file has it, of a sweep every value a method."""
        return swept(read(QUESTIONS / f"{self.name}.toml"))

    @cached_property
    def question(self) -> str:
        """The file's first comment."""
        lines = (QUESTIONS / f"{self.name}.toml").read_text("utf-8").splitlines()
        head = itertools.takewhile(lambda line: line.startswith("#"), lines)
        return " ".join(line.removeprefix("#").strip() for line in head)

    @cached_property
    def cells(self) -> list[dict[str, str]]:
        """Of the CSV, those that are finished."""
        with (RESULTS / f"{self.name}.csv").open(newline="", encoding="utf-8") as file:
            return [cell for cell in csv.DictReader(file) if cell["status"] == "completed"]

    @cached_property
    def measured(self) -> dict[str, dict[str, str]]:
        """Where and how each row: command, commit, machine."""
        found: dict[str, dict[str, str]] = json.loads((RESULTS / f"{self.name}.json").read_text("utf-8"))
        return found

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

    def of(self, row: str, method: str, metric: str) -> dict[int, float | None]:
        """Seed -> figure."""
        return self.column(row, method, METRIC + metric)

    def column(self, row: str, method: str, name: str) -> dict[int, float | None]:
        """Seed -> what stands in a column."""
        return {
            int(cell["seed"]): float(value) if (value := cell[name]) else None
            for cell in self.cells
            if (cell["row"], cell["method"]) == (row, method)
        }

    def against(self, row: str, method: str, metric: str, base: str = "") -> Difference | None:
        """To the baseline, or to another method, seed by seed."""
        return difference(self.of(row, method, metric), self.of(row, base or self.comparison.beside, metric))

    @property
    def tried(self) -> dict[str, str]:
        """Of a sweep, each method that is one value of several -> the method that it is a variant of."""
        return {entry.label: entry.of for entry in self.comparison.methods if entry.of}

    def chosen(self, row: str) -> set[str]:
        """The values with the highest accuracy on validation rows over the seeds, of each method that is swept."""
        found = {label: spread(list(self.column(row, label, VALIDATION).values())) for label in self.tried}
        groups = [[label for label in found if self.tried[label] == of] for of in dict.fromkeys(self.tried.values())]
        seeds = len(self.comparison.seeds)
        return {best_of({label: found[label] for label in group}, seeds) for group in groups}

    def kilobytes(self, row: str, method: str) -> float | None:
        """Of payload a round, both ways and all clients, over the seeds; None of what was not measured."""
        own = [cell for cell in self.cells if (cell["row"], cell["method"]) == (row, method)]
        each = [int(cell["payload_bytes"]) / int(cell["rounds"]) / 1e3 for cell in own]
        return sum(each) / len(each) if each else None


def page(answer: Answer) -> str:
    """The page, as Markdown."""
    title, mark, rest = answer.question.partition("?")
    words = QUESTIONS / f"{answer.name}.md"
    lines = [f"# {title}{mark}", "", rest.strip(), ""]
    lines += [words.read_text("utf-8").strip(), ""] if words.exists() else []
    lines += [f"![Differences to {answer.comparison.beside}, by method and row]({answer.name}.svg)", ""]
    lines += [
        f"*Difference to `{answer.comparison.beside}` in points of test accuracy, seed by seed: mean and 95 % interval "
        "(Student's t). One panel a table.*",
        "",
    ]
    for row in answer.rows:
        lines += [f"## {row}", "", *_table(answer, row), "", *_apart(answer, row), ""]
    swept_by = (
        " In the last column, bold: the values with the highest accuracy on validation rows, by the rule of the first "
        "column, which is what a sweep chooses, none where a seed is missing; the test rows have no part in it."
    )
    lines += [
        "## How it was measured",
        "",
        f"{' '.join(_where(answer))} Every cell's figures are in "
        f"`benchmarks/results/{answer.name}.csv`; this page and its picture are made of them by "
        "`python -m benchmarks.answers`. The accuracy is that of the metric at the head of each column, mean ± sample "
        "standard deviation over seeds in %; in brackets the 95 % interval of the difference to "
        f"`{answer.comparison.beside}`, bold where it leaves zero out. Intervals are not corrected for the number of "
        f"methods: of twenty that do nothing one is expected in bold.{swept_by if answer.tried else ''}",
    ]
    return "\n".join(lines) + "\n"


def _where(answer: Answer) -> Iterator[str]:
    """A sentence for each command, with the rows that it gave where there are several."""
    for told, rows in itertools.groupby(answer.rows, lambda row: answer.measured[row]):
        named = list(rows)
        seeds = sorted({int(cell["seed"]) for cell in answer.cells if cell["row"] in named})
        of = "" if named == answer.rows else f"{'; '.join(named)}: "
        numbers = ", ".join(map(str, seeds))
        yield f"{of}`{told['command']}`, commit {told['commit']}, seeds {numbers}, {told['machine']}."


def _table(answer: Answer, row: str) -> Iterator[str]:
    base, seeds = answer.comparison.beside, len(answer.comparison.seeds)
    head = ["method", *(part for metric in answer.metrics for part in (metric, f"less `{base}`")), "kB a round"]
    tried, chosen = answer.tried, answer.chosen(row)
    if tried:
        head.append("validation rows")
    yield f"| {' | '.join(head)} |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    best = {metric: ahead({name: answer.of(row, name, metric) for name in answer.methods}) for metric in answer.metrics}
    for method in answer.methods:
        cells = [f"`{method}`"]
        for metric in answer.metrics:
            value = accuracy(spread(list(answer.of(row, method, metric).values())), seeds)
            cells.append(f"**{value}**" if method == best[metric] else value)
            cells.append("" if method == base else _difference(answer.against(row, method, metric)))
        sent = answer.kilobytes(row, method)
        cells.append("-" if sent is None else f"{sent:,.1f}")
        if tried:
            value = accuracy(spread(list(answer.column(row, method, VALIDATION).values())), seeds)
            cells.append(f"**{value}**" if method in chosen else value if method in tried else "")
        yield f"| {' | '.join(cells)} |"


def _apart(answer: Answer, row: str) -> Iterator[str]:
    """Who is above and below the methods that send nothing."""
    for base in (each for each in SILENT if each in answer.methods):
        for metric in answer.metrics:
            against = {name: answer.against(row, name, metric, base) for name in answer.methods if name != base}
            found = {name: each for name, each in against.items() if each}
            if not found:
                continue
            apart = {name: each.mean > 0 for name, each in found.items() if each.apart}
            above, below = ([f"`{name}`" for name, up in apart.items() if up is kind] for kind in (True, False))
            yield (
                f"- {metric}, apart from `{base}`: above {', '.join(above) or 'none'}; below "
                f"{', '.join(below) or 'none'}; neither {len(found) - len(apart)} of {len(found)}"
            )


def _difference(each: Difference | None) -> str:
    if each is None:
        return "-"
    mean = f"{100 * each.mean:+.1f}"
    if each.low is None or each.high is None:
        return mean
    words = f"{mean} [{100 * each.low:+.1f}, {100 * each.high:+.1f}]"
    return f"**{words}**" if each.apart else words


def picture(answer: Answer) -> str:
    """Every method's difference to the baseline with its interval, as SVG: a panel a row, a colour a metric."""
    methods = [method for method in answer.methods if method != answer.comparison.beside]
    many = len(answer.rows)
    # where the baseline has no such figure there is none to be less by
    shown = [m for m in answer.metrics if any(answer.against(row, each, m) for row in answer.rows for each in methods)]
    names = max(2.6, 1 + 0.08 * max(map(len, methods)))  # inches that they take
    down = ceil(many / PANELS_ACROSS)
    across = ceil(many / down)
    with canvas.figure((names + 2.6 * across, 0.5 + down * (0.8 + 0.3 * len(methods)))) as drawing:
        panels = drawing.subplots(down, across, sharey=True, squeeze=False).flatten()
        for axes in panels[many:]:
            axes.remove()
        for axes, row in zip(panels[:many], answer.rows, strict=True):
            axes.axvline(0, color=canvas.SOFT, linewidth=1)
            for place in range(len(shown)):
                _intervals(axes, answer, row, shown, methods, place)
            axes.set_title(row)
            axes.set_xlabel("points")
        panels[0].set_yticks(range(len(methods)), methods)
        panels[0].invert_yaxis()
        named = panels[0].get_legend_handles_labels()
        drawing.legend(*named, loc="outside lower center", ncols=min(len(shown), 2 * across))
        return canvas.svg(drawing)


def _intervals(
    axes: "Axes", answer: Answer, row: str, metrics: Sequence[str], methods: Sequence[str], place: int
) -> None:
    found = [answer.against(row, method, metrics[place]) for method in methods]
    known = [(number, each) for number, each in enumerate(found) if each is not None]
    across = [100 * each.mean for _, each in known]
    heights = [number + 0.22 * (place - (len(metrics) - 1) / 2) for number, _ in known]
    ends = [
        [100 * (each.mean - (each.mean if each.low is None else each.low)) for _, each in known],
        [100 * ((each.mean if each.high is None else each.high) - each.mean) for _, each in known],
    ]
    axes.errorbar(
        across,
        heights,
        xerr=ends,
        fmt=canvas.MARKERS[place],
        color=canvas.COLOURS[place],
        markersize=4,
        linewidth=1.3,
        label=metrics[place],
    )


def keep(name: str, folder: Path, command: str, commit: str) -> None:
    """A comparison's figures, and where they were measured, under benchmarks/results. A row that is not finished is
    left out: its methods would not have the same seeds."""
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    whole = [cell for cell in cells if all(o["status"] == "completed" for o in cells if o["row"] == cell["row"])]
    if not whole:
        raise SystemExit(f"{folder} has no finished row; protosphere compare --resume {folder} goes on with it.")
    RESULTS.mkdir(exist_ok=True)
    answer, told = Answer(name), {"command": command, "commit": commit, "machine": where().partition(", ")[2]}
    anew = {cell["row"] for cell in whole}
    before = (RESULTS / f"{name}.csv").exists()
    stay = [cell for cell in answer.cells if cell["row"] not in anew] if before else []
    order = [row.label for row in answer.comparison.rows]
    if strange := sorted(anew.union(cell["row"] for cell in stay).difference(order)):
        raise SystemExit(f"{QUESTIONS / name}.toml has no row {', '.join(strange)}; its rows are {', '.join(order)}.")
    cells = sorted([*stay, *whole], key=lambda cell: order.index(cell["row"]))
    about = (answer.measured if before else {}) | dict.fromkeys(anew, told)
    with (RESULTS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        # where a run lay on that machine is no figure
        columns = [column for column in dict.fromkeys(itertools.chain(*cells)) if column != "run"]
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(cells)
    told_of = {row: about[row] for row in order if row in about}
    (RESULTS / f"{name}.json").write_text(json.dumps(told_of, indent=1) + "\n", "utf-8")


def answers() -> list[Answer]:
    """All for which something was measured."""
    return [Answer(path.stem) for path in sorted(RESULTS.glob("*.csv"))]


def main() -> None:
    """Keep a comparison, or write all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what")
    kept = commands.add_parser("keep")
    kept.add_argument("name")
    kept.add_argument("folder", type=Path)
    kept.add_argument("--command", required=True, help="by which it was measured")
    kept.add_argument("--commit", required=True, help="of the program that measured it")
    options = parser.parse_args()
    if options.what == "keep":
        keep(options.name, options.folder, options.command, options.commit)
    PAGES.mkdir(exist_ok=True)
    for answer in answers():
        (PAGES / f"{answer.name}.md").write_text(page(answer), "utf-8")
        (PAGES / f"{answer.name}.svg").write_text(picture(answer), "utf-8")
        print(PAGES / f"{answer.name}.md")


if __name__ == "__main__":
    main()
