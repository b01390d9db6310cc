"""From the runs of a comparison to its numbers: the figures of each cell, and one tidy frame of them for all tables."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.paired import Difference, difference
from protosphere.comparison.plan import ENSEMBLE, Comparison, Metric
from protosphere.comparison.trials import Cell
from protosphere.record.figures import MAJORITY
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import up_to_date
from protosphere.reports import csv_files

# of a rule in summary.json; a round's number is no figure
NO_FIGURES = ("selected_round", "clients")
DIGITS = 2  # of a percentage
VALIDATION = "validation"  # column of what a sweep is decided by


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
        reached: the first evaluation of trained models at the target or above; None when there is none.
        curve: every evaluation by the first metric's rule.
    """

    cell: Cell
    run: Path
    values: tuple[float | None, ...]
    validation: float | None
    floor: float | None
    payload: int
    wire: int
    seconds: float
    reached: Point | None
    curve: tuple[Point, ...]
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


def result(cell: Cell, run: Path, comparison: Comparison) -> Result:
    """One cell's figures, from its run's folder."""
    lines = RunFolder(run).lines()
    summary = up_to_date(RunFolder(run).summary(), lines)
    rule, metric, target = summary["headline"]["rule"], comparison.metrics[0], comparison.target
    curve = curve_of(lines, metric.rule or rule)
    passed = (point for point in curve if point.of_round > 0 and target is not None and point.accuracy >= target)
    sizes = summary["bytes"]
    return Result(
        cell,
        run,
        values=tuple(value_of(summary, table_metric) for table_metric in comparison.metrics),
        validation=validation_of(lines, metric, rule),
        floor=summary["floor"][MAJORITY],
        payload=sizes["payload_up"] + sizes["payload_down"],
        wire=sizes["wire_up"] + sizes["wire_down"] - sizes["evaluation_wire_up"],
        seconds=summary["seconds"],
        reached=next(passed, None),
        curve=curve,
        summary=summary,
    )


def tidy(comparison: Comparison, cell_results: Iterable[Result]) -> pd.DataFrame:
    """A row for each finished cell and metric: `row`, `method`, `seed`, `metric`, `value`; of the cell `validation`,
    `floor`, `payload`, `wire` (bytes), `seconds`, `steps` (gradient steps a client and round), `values` (exchanged a
    round, as float32; not a number where another format was sent), and `reached_round`, `reached_payload`,
    `reached_wire` of the target. Figures that are not there are not numbers.
    """
    rows = []
    for found in cell_results:
        summary, cell = found.summary, found.cell
        is_float32 = summary.get("settings", {}).get("wire-dtype", "float32") == "float32"
        of_cell = {name: getattr(found, name) for name in ("validation", "floor", "payload", "wire", "seconds")}
        of_cell["steps"] = summary.get("gradient_steps")
        of_cell["values"] = found.payload / 4 / max(summary["rounds"], 1) if is_float32 else None
        if found.reached is not None:
            of_cell |= {f"reached_{name}": value for name, value in found.reached._asdict().items()}
        for metric, value in zip(comparison.metrics, found.values, strict=True):
            labels = {"row": cell.row, "method": cell.method, "seed": cell.seed, "metric": str(metric)}
            rows.append(labels | {"value": value} | of_cell)
    reached = ["reached_of_round", "reached_payload", "reached_wire"]
    numbers = ["value", VALIDATION, "floor", "payload", "wire", "seconds", "steps", "values", *reached]
    frame = pd.DataFrame(rows, columns=["row", "method", "seed", "metric", *numbers])
    return frame.astype(dict.fromkeys(numbers, float))


def of_cells(frame: pd.DataFrame, row: str) -> pd.DataFrame:
    """What the tidy frame has of a row of the comparison, once for each cell."""
    return frame[frame["row"] == row].drop_duplicates(["method", "seed"])


def by_method(frame: pd.DataFrame, comparison: Comparison, row: str) -> dict[str, pd.DataFrame]:
    """`of_cells` by method, in the comparison's order; of one without a finished run nothing."""
    cells = of_cells(frame, row)
    return {method.label: cells[cells["method"] == method.label] for method in comparison.methods}


def by_seed(frame: pd.DataFrame, comparison: Comparison, row: str, metric: Metric) -> pd.DataFrame:
    """One metric of a row of the tidy frame: seeds down, the comparison's methods across."""
    part = frame[(frame["row"] == row) & (frame["metric"] == str(metric))]
    methods = [method.label for method in comparison.methods]
    return part.pivot(index="seed", columns="method", values="value").reindex(columns=methods)


def value_of(summary: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a run's summary."""
    if metric.rule == ENSEMBLE:
        ensemble: Mapping[str, float] = summary.get("ensemble", {})
        return ensemble.get(metric.figure)
    headline = summary["headline"]
    figure = headline["figure"] if metric.figure == "headline" else metric.figure
    values: Mapping[str, float | None] = summary["rules"].get(metric.rule or headline["rule"], {})
    return values.get(figure)


def validation_of(lines: Sequence[Mapping[str, Any]], metric: Metric, rule: str) -> float | None:
    """What a metric's figure is on validation rows: of the last evaluation or the last five of trained models where the
    metric is that, else the highest. None where there are no such rows.

    Args:
        rule: the run's own, where the metric has none or asks the ensemble, which no validation row is put to.
    """
    rule = rule if metric.rule in ("", ENSEMBLE) else metric.rule
    means = []
    for line in lines:
        evaluation = line.get("evaluation", {})
        measured = evaluation.get("rules", {}).get(rule, {}).get("validation")
        # round 0 has trained nothing
        if measured and evaluation["of_round"] > 0:
            means.append(measured["mean"])
    if metric.figure == "last-5" and means:
        return statistics.fmean(means[-5:])
    if metric.figure in ("final", "all-classes"):
        means = means[-1:]
    return max(means, default=None)


def curve_of(lines: Sequence[Mapping[str, Any]], rule: str) -> tuple[Point, ...]:
    """Every evaluation; bytes and seconds are those of the rounds up to it.

    Args:
        lines: of metrics.jsonl. rule: a prediction rule, or `ensemble`.
    """
    totals = [(0, 0, 0.0)]
    points = []
    for line in lines:
        sizes, (payload, wire, seconds) = line["bytes"], totals[-1]
        payload += sizes["payload_up"] + sizes["payload_down"]
        wire += sizes["wire_up"] + sizes["wire_down"] - sizes["evaluation_wire_up"]
        totals.append((payload, wire, seconds + line["time"]["round"]))
    for line in lines:
        if rule == ENSEMBLE:
            measured = line.get(ENSEMBLE, {})
            accuracy = measured.get("accuracy")
        else:
            measured = line.get("evaluation", {})
            accuracy = measured.get("rules", {}).get(rule, {}).get("test", {}).get("mean")
        if accuracy is not None:
            points.append(Point(measured["of_round"], accuracy, *totals[measured["of_round"]]))
    return tuple(points)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Over the values that are there; None without any."""
    numbers = [float(value) for value in values if value is not None and value == value]
    if not numbers:
        return None
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def percent(share: float) -> str:
    """A share as a percentage, with the digits that tables show."""
    return f"{100 * share:.{DIGITS}f}"


def every_difference(comparison: Comparison, frame: pd.DataFrame) -> dict[tuple[str, str, str], Difference | None]:
    """(row, metric, method) -> its difference to the baseline, seed by seed, in the comparison's order."""
    differences = {}
    for row in comparison.rows:
        for metric in comparison.metrics:
            figures = by_seed(frame, comparison, row.label, metric)
            for method in figures.columns.drop(comparison.baseline_label):
                contrast = difference(figures[method], figures[comparison.baseline_label])
                differences[row.label, str(metric), method] = contrast
    return differences


def differences_csv(comparison: Comparison, cell_results: Sequence[Result]) -> str:
    """A line for each row, metric and method but the baseline; as shares of 1."""
    heads = ["row", "metric", "method", "baseline", "seeds", "difference", "low", "high", "seeds_needed"]
    lines: list[list[object]] = [[*heads]]
    for labels, contrast in every_difference(comparison, tidy(comparison, cell_results)).items():
        numbers: tuple[object, ...] = (0, None, None, None, None)
        if contrast is not None:
            numbers = (contrast.seeds, contrast.mean, contrast.low, contrast.high, contrast.needed)
        lines.append([*labels, comparison.baseline_label, *numbers])
    return csv_files.as_csv(lines)


def as_csv(comparison: Comparison, cells: Sequence[Cell], cell_results: Sequence[Result], folder: Path) -> str:
    """`every_figure` as a file."""
    return csv_files.as_csv(every_figure(comparison, cells, cell_results, folder))


def every_figure(
    comparison: Comparison, cells: Sequence[Cell], cell_results: Sequence[Result], folder: Path
) -> list[list[object]]:
    """Heads, then a line a cell; a cell without a finished run has its names alone. Accuracies are shares of 1."""
    metrics = list(map(str, comparison.metrics))
    # the paper's figures are of its own settings, unscaled
    scaled = any(cell.scaled for cell in cells)
    paper = {} if scaled else {(line.row, line.method, line.metric): line.accuracy / 100 for line in comparison.paper}
    figures_by_cell = {found.cell.name: _figures(found) for found in cell_results}
    lines_by_cell = {found.cell.name: _line(found, metrics, folder) for found in cell_results}
    lines = []
    for cell in cells:
        line: dict[str, object] = {"row": cell.row, "method": cell.method, "seed": cell.seed}
        line["strategy"] = cell.settings["strategy"]
        line |= {f"paper: {metric}": paper.get((cell.row, cell.method, metric)) for metric in metrics}
        line |= {"status": "missing", "scaled": cell.scaled}
        lines.append(line | figures_by_cell.get(cell.name, {}) | lines_by_cell.get(cell.name, {}))
    heads = ["row", "method", "strategy", "seed", "status"]
    heads += [f"{kind}: {metric}" for kind in ("paper", "metric") for metric in metrics] + [VALIDATION, MAJORITY]
    heads += dict.fromkeys(name for figures in figures_by_cell.values() for name in figures)
    heads += ["payload_bytes", "wire_bytes", "target_round", "target_payload_bytes", "target_wire_bytes"]
    heads += ["gradient_steps", "rounds", "clients", "seconds", "scaled", "run"]
    return [[*heads], *([line.get(name) for name in heads] for line in lines)]


def _line(found: Result, metrics: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a finished cell has in the file beside its labels and `_figures`."""
    line: dict[str, Any] = {f"metric: {metric}": value for metric, value in zip(metrics, found.values, strict=True)}
    line |= {"status": "completed", VALIDATION: found.validation, MAJORITY: found.floor}
    line |= {"payload_bytes": found.payload, "wire_bytes": found.wire}
    if found.reached is not None:
        reached = found.reached
        line |= {"target_round": reached.of_round, "target_payload_bytes": reached.payload}
        line["target_wire_bytes"] = reached.wire
    line |= {name: found.summary.get(name) for name in ("gradient_steps", "rounds", "clients")}
    return line | {"seconds": f"{found.seconds:.1f}", "run": found.run.relative_to(folder).as_posix()}


def _figures(found: Result) -> dict[str, float | None]:
    """Every figure of a run by its name in the table: rule and figure, the ensemble's, the domains'."""
    summary = found.summary
    groups: dict[str, dict[str, float | None]] = {**summary["rules"], "ensemble": summary.get("ensemble", {})}
    named: dict[str, float | None] = {
        f"{rule} {figure}": values[figure]
        for rule, values in groups.items()
        for figure in values
        if figure not in NO_FIGURES
    }
    for domain, rules in summary.get("domains", {}).items():
        named[f"domain {domain}"] = rules.get(summary["headline"]["rule"])
    return named
