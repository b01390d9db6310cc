"""From the runs of a comparison to its numbers: each cell's figures, and their mean and spread over seeds."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.paired import Difference, difference
from protosphere.comparison.plan import ENSEMBLE, Comparison, Metric
from protosphere.comparison.trials import Cell
from protosphere.record.figures import MAJORITY
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import up_to_date
from protosphere.reports import csv_files

# of a rule in summary.json; a round's number is no figure
NO_FIGURES = ("selected_round",)
DIGITS = 2  # of a percentage
VALIDATION = "validation"  # column of what a sweep is decided by


@dataclass(frozen=True)
class Reached:
    """The first evaluation of trained models whose mean accuracy is the target or above: of which round's models, and
    all bytes of prototypes and of training messages, both directions, up to that round."""

    of_round: int
    payload: int
    wire: int


class Point(NamedTuple):
    """One evaluation: of which round's models, their mean accuracy, and what it took up to that round: bytes of
    prototypes and of training messages in both directions, and seconds."""

    of_round: int
    accuracy: float
    payload: int
    wire: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """One finished cell.

    Attributes:
        run: its run's folder.
        values: one for each metric of the comparison, None where the run has no such figure.
        validation: mean accuracy on validation rows by the first metric's rule, see `validation_of`.
        floor: accuracy of always answering each client's majority class.
        payload, wire: bytes of the whole run's training, both directions; wire without evaluations.
        reached: None when the target never was, or there is none.
        curve: of every evaluation by the first metric's rule.
    """

    cell: Cell
    run: Path
    values: tuple[float | None, ...]
    validation: float | None
    floor: float | None
    payload: int
    wire: int
    seconds: float
    reached: Reached | None
    curve: tuple["Point", ...]
    summary: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, sample standard deviation (ddof 1; None of a single seed), and how many seeds."""

    mean: float
    std: float | None
    seeds: int


def results(folder: ComparisonFolder, comparison: Comparison, cells: Sequence[Cell]) -> list[Result]:
    """The figures of every finished cell, in the cells' order."""
    runs = [(cell, folder.run_of(cell)) for cell in cells]
    return [result(cell, run, comparison) for cell, run in runs if run is not None]


def by_method(cell_results: Sequence[Result], row: str, comparison: Comparison) -> dict[str, list[Result]]:
    """The results of one row: the method's label -> its seeds'."""
    return {
        method.label: [
            cell_result
            for cell_result in cell_results
            if (cell_result.cell.row, cell_result.cell.method) == (row, method.label)
        ]
        for method in comparison.methods
    }


def result(cell: Cell, run: Path, comparison: Comparison) -> Result:
    """One cell's figures, from its run's folder."""
    lines = RunFolder(run).lines()
    summary = up_to_date(RunFolder(run).summary(), lines)
    headline = summary["headline"]
    metric = comparison.metrics[0]
    curve = curve_of(lines, metric.rule or headline["rule"])
    target = comparison.target
    trained = [point for point in curve if point.of_round > 0]
    passed = next((point for point in trained if target is not None and point.accuracy >= target), None)
    sizes = summary["bytes"]
    return Result(
        cell,
        run,
        tuple(value_of(summary, table_metric) for table_metric in comparison.metrics),
        validation_of(lines, metric, headline["rule"]),
        summary["floor"][MAJORITY],
        sizes["payload_up"] + sizes["payload_down"],
        sizes["wire_up"] + sizes["wire_down"] - sizes["evaluation_wire_up"],
        summary["seconds"],
        Reached(passed.of_round, passed.payload, passed.wire) if passed else None,
        curve,
        summary,
    )


def value_of(summary: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a run's summary."""
    if metric.rule == ENSEMBLE:
        ensemble: Mapping[str, float] = summary.get("ensemble", {})
        return ensemble.get(metric.figure)
    rule = metric.rule or summary["headline"]["rule"]
    figure = summary["headline"]["figure"] if metric.figure == "headline" else metric.figure
    values: Mapping[str, float | None] = summary["rules"].get(rule, {})
    return values.get(figure)


def validation_of(lines: Sequence[Mapping[str, Any]], metric: Metric, rule: str) -> float | None:
    """What a metric's figure is on validation rows: of the last evaluation or the last five of trained models where the
    metric is that, else the highest. None where there are no such rows.

    Args:
        rule: the run's own, where the metric has none or asks the ensemble, which no validation row is put to.
    """
    rule = rule if metric.rule in ("", ENSEMBLE) else metric.rule
    evaluations = [line["evaluation"] for line in lines if "evaluation" in line]
    means = [
        evaluation["rules"][rule]["validation"]["mean"]
        for evaluation in evaluations
        # round 0 has trained nothing
        if evaluation["of_round"] > 0 and evaluation.get("rules", {}).get(rule, {}).get("validation")
    ]
    if metric.figure == "last-5":
        return statistics.fmean(means[-5:]) if means else None
    if metric.figure in ("final", "all-classes"):
        return means[-1] if means else None
    return max(means, default=None)


def curve_of(lines: Sequence[Mapping[str, Any]], rule: str) -> tuple[Point, ...]:
    """Every evaluation; bytes and seconds are those of the rounds up to it.

    Args:
        lines: of metrics.jsonl. rule: a prediction rule, or `ensemble`.
    """
    payload, wire, seconds = [0], [0], [0.0]
    for line in lines:
        sizes = line["bytes"]
        payload.append(payload[-1] + sizes["payload_up"] + sizes["payload_down"])
        wire.append(wire[-1] + sizes["wire_up"] + sizes["wire_down"] - sizes["evaluation_wire_up"])
        seconds.append(seconds[-1] + line["time"]["round"])
    points = []
    for line in lines:
        if rule == ENSEMBLE:
            measured, accuracy = line.get(ENSEMBLE), line.get(ENSEMBLE, {}).get("accuracy")
        else:
            measured = line.get("evaluation")
            accuracy = (measured or {}).get("rules", {}).get(rule, {}).get("test", {}).get("mean")
        if measured and accuracy is not None:
            after = measured["of_round"]
            points.append(Point(after, accuracy, payload[after], wire[after], seconds[after]))
    return tuple(points)


def spread(values: Sequence[float | int | None]) -> Spread | None:
    """Over the values that are there; None without any."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def percent(share: float) -> str:
    """A share as a percentage, with the digits that tables show."""
    return f"{100 * share:.{DIGITS}f}"


def differences(
    cell_results: Sequence[Result], row: str, metric: int, comparison: Comparison
) -> dict[str, Difference | None]:
    """Every method of a row but the baseline, held against it seed by seed.

    Args:
        metric: the place of the comparison's.
    """
    figures = by_seed(cell_results, row, metric, comparison)
    base = figures[comparison.baseline_label]
    return {
        method: difference(figures_by_seed, base)
        for method, figures_by_seed in figures.items()
        if method != comparison.baseline_label
    }


def by_seed(
    cell_results: Sequence[Result], row: str, metric: int, comparison: Comparison
) -> dict[str, dict[int, float | None]]:
    """One metric of a row: method -> seed -> its value."""
    return {
        method: {cell_result.cell.seed: cell_result.values[metric] for cell_result in runs}
        for method, runs in by_method(cell_results, row, comparison).items()
    }


def differences_csv(comparison: Comparison, cell_results: Sequence[Result]) -> str:
    """A line for each row, metric and method but the baseline; as shares of 1."""
    lines: list[list[object]] = [
        ["row", "metric", "method", "baseline", "seeds", "difference", "low", "high", "seeds_needed"]
    ]
    for row, metric, method, contrast in every_difference(comparison, cell_results):
        numbers = (
            (contrast.seeds, contrast.mean, contrast.low, contrast.high, contrast.needed)
            if contrast
            else (0, *[None] * 4)
        )
        labels = [row, metric, method, comparison.baseline_label]
        lines.append([*labels, *numbers])
    return csv_files.as_csv(lines)


def every_difference(
    comparison: Comparison, cell_results: Sequence[Result]
) -> Iterator[tuple[str, str, str, Difference | None]]:
    """(row, metric, method, its difference to the baseline), in the comparison's order."""
    for row in comparison.rows:
        for index, metric in enumerate(comparison.metrics):
            for method, contrast in differences(cell_results, row.label, index, comparison).items():
                yield row.label, str(metric), method, contrast


def as_csv(comparison: Comparison, cells: Sequence[Cell], cell_results: Sequence[Result], folder: Path) -> str:
    """`every_figure` as a file."""
    return csv_files.as_csv(every_figure(comparison, cells, cell_results, folder))


def every_figure(
    comparison: Comparison, cells: Sequence[Cell], cell_results: Sequence[Result], folder: Path
) -> list[list[object]]:
    """Heads, then a line a cell; a cell without a finished run has its names alone. Accuracies are shares of 1."""
    of_cell = {result.cell.name: result for result in cell_results}
    figures = list(dict.fromkeys(name for cell_result in cell_results for name in _figures(cell_result)))
    metrics = [f"metric: {metric}" for metric in comparison.metrics]
    paper = [f"paper: {metric}" for metric in comparison.metrics]
    printed = {
        (paper_figure.row, paper_figure.method, f"paper: {paper_figure.metric}"): paper_figure.accuracy / 100
        for paper_figure in comparison.paper
    }
    if any(cell.scaled for cell in cells):
        # the paper's are of its own settings
        printed = {}
    sizes = ["payload_bytes", "wire_bytes", "target_round", "target_payload_bytes", "target_wire_bytes"]
    head = ["row", "method", "strategy", "seed", "status", *paper, *metrics, VALIDATION, MAJORITY, *figures, *sizes]
    head += ["gradient_steps", "rounds", "clients", "seconds", "scaled", "run"]
    lines: list[list[object]] = [list(head)]
    for cell in cells:
        names = [cell.row, cell.method, cell.settings["strategy"], cell.seed]
        theirs = [printed.get((cell.row, cell.method, name)) for name in paper]
        cell_result = of_cell.get(cell.name)
        if cell_result is None:
            lacking = [""] * (len(head) - len(names) - len(theirs) - 3)
            lines.append([*names, "missing", *theirs, *lacking, cell.scaled, ""])
            continue
        figures_by_name = _figures(cell_result)
        reached = (
            (cell_result.reached.of_round, cell_result.reached.payload, cell_result.reached.wire)
            if cell_result.reached
            else ("",) * 3
        )
        row: list[object] = [
            *names,
            "completed",
            *theirs,
            *cell_result.values,
            cell_result.validation,
            cell_result.floor,
            *(figures_by_name.get(name) for name in figures),
        ]
        row += [cell_result.payload, cell_result.wire, *reached, cell_result.summary.get("gradient_steps")]
        row += [cell_result.summary["rounds"], cell_result.summary["clients"]]
        row += [f"{cell_result.seconds:.1f}", cell.scaled, cell_result.run.relative_to(folder).as_posix()]
        lines.append(row)
    return lines


def _figures(cell_result: Result) -> dict[str, float | None]:
    """Every figure of a run by its name in the table: rule and figure, the ensemble's, the domains'."""
    named = {
        f"{rule} {figure}": value
        for rule, values in cell_result.summary["rules"].items()
        for figure, value in values.items()
        if figure not in NO_FIGURES
    }
    named |= {f"ensemble {figure}": value for figure, value in cell_result.summary.get("ensemble", {}).items()}
    for domain, rules in cell_result.summary.get("domains", {}).items():
        named[f"domain {domain}"] = rules.get(cell_result.summary["headline"]["rule"])
    return named
