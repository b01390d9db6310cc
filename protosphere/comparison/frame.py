"""From the runs of a comparison to its numbers: one frame of all trials, and of it the means and the differences that
every table and picture shows."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.paired import difference, rejected
from protosphere.comparison.spec import DOMAIN_KEYS, ENSEMBLE, MACRO, ComparisonSpec, Metric
from protosphere.comparison.trials import Trial
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import MAJORITY
from protosphere.record.summary import FLOORS, doubts_of_clients, rounds_to_choose_from, with_members
from protosphere.reports import csv_files
from protosphere.reports.frames import over_rounds, sent_by_round
from protosphere.strategies import default_encoder, load_method
from protosphere.strategies.release import OWN_POOL, OWN_RULE, POOL, RULE

# of a rule in summary.json; a round's number is no figure
NO_FIGURES = ("selected_round", "clients", "since", "complete")
# a rule -> the same rule without an exchange, of `local`, against which it is measured what an exchange adds
CONTROLS = {RULE: OWN_RULE, POOL: OWN_POOL}
VALIDATION = "validation"  # column of what variants are chosen by
TEST_SAMPLES = "test_samples"  # column: on how many of all clients the headline was measured
# columns of the frame of all trials that are not in table.csv: the values exchanged a round, as float32 (None where
# another format was sent), the second model that all clients have, every evaluation by the first metric's rule, the
# run's own headline, what its figures lack, and the public encoder that clients read samples through ("" for none)
BESIDE = ("values", "companion", "curve", "headline", "doubts", "encoder")
# columns of `means_of` by those of the frame of all trials
COSTS = {"payload": "payload_bytes", "wire": "wire_bytes", "seconds": "seconds", "gradient_steps": "gradient_steps"}


@dataclass(frozen=True)
class MeanStd:
    """Mean over seeds, sample standard deviation (ddof 1; None of a single seed), and how many seeds."""

    mean: float
    std: float | None
    seeds: int


def collect(folder: ComparisonFolder, comparison: ComparisonSpec, trials: Sequence[Trial]) -> pd.DataFrame:
    """A row for each trial, finished or not, in their order: the columns of table.csv, and those of `BESIDE`.

    Accuracies are shares of 1. A figure that is not there is None, as all of a trial without a finished run are.
    """
    metrics = list(map(str, comparison.metrics))
    paper = {(line.row, line.method, line.metric): line.accuracy / 100 for line in comparison.paper}
    rows = []
    for trial in trials:
        row: dict[str, Any] = {"row": trial.row, "method": trial.method, "seed": trial.seed}
        row |= {"strategy": trial.settings["strategy"], "status": "missing", "encoder": _encoder_of(trial)}
        row |= {f"paper: {metric}": paper.get((trial.row, trial.method, metric)) for metric in metrics}
        run = folder.run_of(trial)
        if run is not None:
            row |= {"status": "completed", "run": run.relative_to(folder.path).as_posix()}
            row |= collect_run(run, comparison)
        rows.append(row)
    first = ["row", "method", "strategy", "seed", "status", "rule"]
    first += [f"{kind}: {metric}" for kind in ("paper", "metric") for metric in metrics]
    first += [VALIDATION, *FLOORS, TEST_SAMPLES]
    last = ["payload_bytes", "wire_bytes", "gradient_steps", "rounds", "clients", "seconds", "run", *BESIDE]
    by_rule = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in {*first, *last}]
    columns = [*first, *by_rule, *last]
    # whole numbers stay whole beside what is not there
    return pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=columns, dtype=object)


def _encoder_of(trial: Trial) -> str:
    named = trial.settings.get("encoder", "")
    return str(named or default_encoder(load_method(str(trial.settings["strategy"]))))


def collect_run(run: Path, comparison: ComparisonSpec) -> dict[str, Any]:
    """What a finished run has in the columns of `collect`.

    Bytes are of the whole run's training, both directions; `wire_bytes` without evaluations.
    """
    lines = RunFolder(run).lines(with_clients=False)
    summary = RunFolder(run).summary()
    rule, metric = summary["headline"]["rule"], comparison.metrics[0]
    curve = curve_of(select_means(metric, lines), metric.curve_rule(rule))
    sizes = summary["bytes"]
    payload = sizes["payload_up"] + sizes["payload_down"]
    is_float32 = summary.get("settings", {}).get("wire-dtype", "float32") == "float32"
    figures: dict[str, Any] = {f"metric: {metric}": value_of(summary, metric) for metric in comparison.metrics}
    figures |= {VALIDATION: validation_of(lines, metric, rule)}
    figures |= {name: summary["floor"][name] for name in FLOORS}
    figures |= {TEST_SAMPLES: summary["headline"].get("rows")} | _every_figure(summary)
    figures |= {
        "payload_bytes": payload,
        "wire_bytes": sizes["wire_up"] + sizes["wire_down"],
        "values": payload / 4 / max(summary["rounds"], 1) if is_float32 else None,
        "curve": curve,
        "rule": rule,
        "headline": value_of(summary, Metric()),
        "doubts": "; ".join(doubts_of_clients(summary)),
    }
    return figures | {
        name: summary.get(name) for name in ("gradient_steps", "rounds", "clients", "seconds", "companion")
    }


def _every_figure(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Every figure of a run by its name in the table: rule and figure, the ensemble's, the domains'."""
    groups: dict[str, dict[str, float | None]] = {**summary["rules"], "ensemble": summary.get("ensemble", {})}
    figures: dict[str, float | None] = {
        f"{rule} {figure}": values[figure]
        for rule, values in groups.items()
        for figure in values
        if figure not in NO_FIGURES
    }
    for word, key in DOMAIN_KEYS.items():
        for domain, rules in summary.get(key, {}).items():
            figures[f"{word} {domain}"] = rules.get(summary["headline"]["rule"])
    for name, value in _macro(summary).items():
        figures[f"macro {name}"] = value
    return figures


def _macro(summary: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Every class alike, of the last evaluation by the run's own rule: `accuracy`, `f1`; nothing where clients do not
    tell of classes."""
    macro: Mapping[str, float | None] = summary.get("classes", {}).get("macro", {})
    return macro


def by_method(frame: pd.DataFrame, comparison: ComparisonSpec, row: str) -> dict[str, pd.DataFrame]:
    """The trials of a row of the comparison by method, in the comparison's order."""
    trials = frame[frame["row"] == row]
    return {method.label: trials[trials["method"] == method.label] for method in comparison.methods}


def by_seed(frame: pd.DataFrame, comparison: ComparisonSpec, row: str, metric: Metric) -> pd.DataFrame:
    """One metric of a row of the comparison: seeds down, the comparison's methods across."""
    part = frame[frame["row"] == row].pivot(index="seed", columns="method", values=f"metric: {metric}")
    return part.reindex(columns=[method.label for method in comparison.methods]).astype(float)


def value_of(summary: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a run's summary."""
    if metric.rule == ENSEMBLE:
        ensemble: Mapping[str, float] = summary.get("ensemble", {})
        return ensemble.get(metric.figure)
    headline = summary["headline"]
    if metric.of_domain:
        domain: Mapping[str, float] = summary.get(DOMAIN_KEYS[metric.rule], {}).get(metric.figure, {})
        return domain.get(headline["rule"])
    if metric.figure == MACRO:
        return _macro(summary).get("accuracy")
    figure = headline["figure"] if metric.figure == "headline" else metric.figure
    values: Mapping[str, float | None] = summary["rules"].get(metric.rule or headline["rule"], {})
    return values.get(figure)


def validation_of(lines: Sequence[Mapping[str, Any]], metric: Metric, rule: str) -> float | None:
    """What a metric's figure is on validation rows: of the last evaluation or the last five of trained models where the
    metric is that, else the highest, also for a domain's, which is of the round that this selects. None where there are
    no such rows.

    Args:
        rule: the run's own, where the metric has none or asks the ensemble, which no validation row is put to.
    """
    rule = metric.rule_of(rule)
    means = over_rounds(lines, rule)["validation"].dropna()
    # round 0 has trained nothing
    means = means[means.index > 0]
    figure = "selected" if metric.of_domain else metric.figure
    at_the_end = figure in ("final", "final-unweighted", MACRO)
    if figure != "last-5" and not at_the_end:
        evaluations = [with_members(line) for line in lines if "evaluation" in line]
        means = means[means.index.isin(rounds_to_choose_from(evaluations, rule)[0])]
    if means.empty:
        return None
    if figure == "last-5":
        return statistics.fmean(means[-5:])
    return float(means.iloc[-1] if at_the_end else means.max())


def select_means(metric: Metric, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl whose means are those of the metric: of the clients of its domain alone, and unweighted
    if the metric is an unweighted mean."""
    selected = []
    for line in lines:
        evaluation = line.get("evaluation", {})
        rules = evaluation.get("rules", {})
        if metric.of_domain:
            rules = evaluation.get("domains", {}).get(metric.figure, {})
        means: dict[str, Any] = {}
        for rule, splits in rules.items():
            means[rule] = {split: {**figures, "mean": figures[metric.average]} for split, figures in splits.items()}
        fields = {name: value for name, value in line.items() if name != "evaluation"}
        selected.append(fields | {"evaluation": {"rules": means}} if means else fields)
    return selected


def curve_of(lines: Sequence[Mapping[str, Any]], rule: str) -> pd.DataFrame:
    """Every evaluation, by the round whose models it is of: `accuracy`, and what these took: `payload` and
    `wire`.

    Args:
        lines: of metrics.jsonl. rule: a prediction rule, or `ensemble`.
    """
    column = ENSEMBLE if rule == ENSEMBLE else "accuracy"
    accuracies = over_rounds(lines, rule).reindex(columns=[column])[column].dropna()
    return accuracies.to_frame("accuracy").join(sent_by_round(lines))


def summarise(values: Iterable[float | None]) -> MeanStd | None:
    """Over the values that are there; None without any."""
    numbers = [float(value) for value in values if value is not None and value == value]
    if not numbers:
        return None
    return MeanStd(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def floor(trials: pd.DataFrame, row: str, name: str = MAJORITY) -> MeanStd | None:
    """The majority-class floor of a row: of each seed the mean over methods, each of which measures it in its round.

    Args:
        name: which, as `Metric.floor` has it; without it that by test samples.
    """
    return summarise(trials[trials["row"] == row].astype({name: float}).groupby("seed")[name].mean())


def means_of(comparison: ComparisonSpec, trials: pd.DataFrame) -> pd.DataFrame:
    """A line for each row of the comparison, method and metric: `mean` and `std` over seeds (shares of 1), the `seeds`
    that are finished, and the mean costs."""
    lines: list[dict[str, Any]] = []
    for row in comparison.rows:
        for method, runs in by_method(trials, comparison, row.label).items():
            costs = {name: runs[column].astype(float).mean() for name, column in COSTS.items()}
            for metric in comparison.metrics:
                values = runs[f"metric: {metric}"].astype(float)
                line: dict[str, Any] = {"row": row.label, "method": method, "metric": str(metric)}
                line |= {"mean": values.mean(), "std": values.std(), "seeds": int(values.count())}
                lines.append(line | costs)
    return pd.DataFrame(lines)


def differences(comparison: ComparisonSpec, trials: pd.DataFrame) -> pd.DataFrame:
    """A line for each row of the comparison, metric and method but the baseline: its difference to it, seed by seed.

    Columns: `row`, `metric`, `method`, `baseline`, `seeds` that both have, mean `difference` (shares of 1), `low` and
    `high`, the ends of its interval, `p`, and whether it is `significant` among the methods of a row and metric.
    """
    lines = []
    baseline = comparison.baseline_label
    for row in comparison.rows:
        for metric in comparison.metrics:
            figures = by_seed(trials, comparison, row.label, metric)
            for method in figures.columns.drop(baseline):
                lines.append((row.label, str(metric), method, baseline, figures[method], figures[baseline]))
    return _contrasts(lines)


def gains_of_exchange(comparison: ComparisonSpec, trials: pd.DataFrame) -> pd.DataFrame:
    """What the exchange adds, in the columns of `differences`: the figure of a rule of `CONTROLS` less that of its
    control in the runs of `local` with the same encoder, seed by seed."""
    lines = []
    for row in comparison.rows:
        runs_by_method = by_method(trials, comparison, row.label)
        for method, runs in runs_by_method.items():
            control_label = control_of(comparison, trials, row.label, method)
            if control_label not in runs_by_method:
                continue
            runs, control_runs = runs.set_index("seed"), runs_by_method[control_label].set_index("seed")
            for rule, control in CONTROLS.items():
                # no column is called headline
                for figure in (comparison.metrics[0].figure, "selected", "final"):
                    name, control_name = f"{rule} {figure}", f"{control} {figure}"
                    if name not in runs or control_name not in runs:
                        continue
                    if difference(runs[name], control_runs[control_name]):
                        baseline = f"{control_label}: {control}"
                        lines.append((row.label, name, method, baseline, runs[name], control_runs[control_name]))
                        break
    return _contrasts(lines)


def _contrasts(lines: Sequence[tuple[str, str, str, str, pd.Series, pd.Series]]) -> pd.DataFrame:
    """Figures of methods and of their baselines as differences, with Holm's correction within a row and metric."""
    rows: list[list[Any]] = []
    for row, metric, method, baseline, figures, baseline_figures in lines:
        gap = difference(figures, baseline_figures)
        numbers = [0, None, None, None, None] if gap is None else [gap.seeds, gap.mean, gap.low, gap.high, gap.p]
        rows.append([row, metric, method, baseline, *numbers])
    columns = ["row", "metric", "method", "baseline", "seeds", "difference", "low", "high", "p"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.astype(dict.fromkeys(("difference", "low", "high", "p"), float) | {"seeds": "Int64"})
    table["significant"] = pd.Series(index=table.index, dtype=object)
    for _, tested in table.dropna(subset="p").groupby(["row", "metric"]):
        table.loc[tested.index, "significant"] = pd.Series(rejected(tested["p"].tolist()), tested.index, dtype=object)
    return table


def control_of(comparison: ComparisonSpec, frame: pd.DataFrame, row: str, method: str) -> str:
    """Label of the method `local` whose clients read their samples through the same encoder as those of this method, so
    that the exchange alone lies between both; empty where there is none."""
    trials = frame[frame["row"] == row].drop_duplicates("method").set_index("method")
    if method not in trials.index:
        return ""
    is_control = (trials["strategy"] == "local") & (trials["encoder"] == trials["encoder"][method])
    labels = trials.index[is_control].tolist()
    return comparison.control_label if comparison.control_label in labels else next(iter(labels), "")


def without_control(comparison: ComparisonSpec, frame: pd.DataFrame) -> list[str]:
    """The controls that `local` lacks where another method has the rule: what the exchange adds cannot be told."""
    lacking = []
    for rule, control in CONTROLS.items():
        measured = [name for name in frame.columns if name.startswith(f"{rule} ")]
        columns = [name for name in frame.columns if name.startswith(f"{control} ")]
        exchanged = frame[(frame["strategy"] != "local") & frame[measured].notna().any(axis=1)]
        for row, method in exchanged[["row", "method"]].drop_duplicates().itertuples(index=False):
            runs = frame[frame["method"] == control_of(comparison, frame, row, method)]
            if control not in lacking and not runs[columns].notna().any(axis=None):
                lacking.append(control)
    return lacking


def differences_csv(comparison: ComparisonSpec, frame: pd.DataFrame) -> str:
    """Every difference to the baseline and every gain of an exchange, as a file."""
    tables = [differences(comparison, frame), gains_of_exchange(comparison, frame)]
    return _as_file(pd.concat([table for table in tables if len(table)] or tables[:1]))


def for_file(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame of all trials as table.csv has it."""
    seconds = [None if value is None else round(value, 1) for value in frame["seconds"]]
    return frame.drop(columns=[*BESIDE]).assign(seconds=pd.Series(seconds, index=frame.index, dtype=object))


def as_csv(frame: pd.DataFrame) -> str:
    """`for_file` as a file."""
    return _as_file(for_file(frame))


def _as_file(table: pd.DataFrame) -> str:
    """A table as CSV, in which no name is a formula."""
    cells = table.astype(object).where(table.notna(), None)
    return csv_files.as_csv([list(table.columns), *cells.itertuples(index=False, name=None)])
