"""The numbers of a comparison: one frame with a line for each trial, and its means and differences, which all tables
and plots show."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
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
from protosphere.reports.frames import as_csv, sent_by_round
from protosphere.strategies import default_encoder, load_method
from protosphere.strategies.release import OWN_POOL, OWN_RULE, POOL, RULE

# entries of a rule in summary.json that are no figures
NO_FIGURES = ("selected_round", "clients", "since", "complete")
# a rule with an exchange -> its counterpart of `local`
CONTROLS = {RULE: OWN_RULE, POOL: OWN_POOL}
VALIDATION = "validation"  # column: the accuracy by which variants are chosen
TEST_SAMPLES = "test_samples"
# columns that table.csv leaves out: values exchanged per round (None unless sent as float32), the common second model,
# all evaluations under the first metric's rule, what its figures lack, the public encoder
BESIDE = ["values", "companion", "curve", "doubts", "encoder"]
# columns of `means_of` -> columns of the frame
COSTS = {"payload": "payload_bytes", "wire": "wire_bytes", "seconds": "seconds", "gradient_steps": "gradient_steps"}


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation (ddof 1; None for a single seed) over seeds."""

    mean: float
    std: float | None
    seeds: int


def summarise(values: Iterable[float | None]) -> MeanStd | None:
    """Mean and deviation of the values that are not missing; None if all are."""
    numbers = pd.Series(values, dtype=float).dropna().tolist()
    if not numbers:
        return None
    return MeanStd(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


# --- from runs to the frame --------------------------------------------------------------------------------------


def collect(folder: ComparisonFolder, spec: ComparisonSpec, trials: Sequence[Trial]) -> pd.DataFrame:
    """The frame of all trials: the columns of table.csv, and `BESIDE`. Accuracies are shares of 1.

    Values that do not exist are None, as are all of a trial without a finished run.
    """
    metrics = list(map(str, spec.metrics))
    paper = {(line.row, line.method, line.metric): line.accuracy / 100 for line in spec.paper}
    rows = []
    for trial in trials:
        strategy = str(trial.settings["strategy"])
        row: dict[str, Any] = {"row": trial.row, "method": trial.method, "strategy": strategy, "seed": trial.seed}
        row |= {f"paper: {metric}": paper.get((trial.row, trial.method, metric)) for metric in metrics}
        row["encoder"] = str(trial.settings.get("encoder", "") or default_encoder(load_method(strategy)))
        run = folder.run_of(trial)
        if run is None:
            row["status"] = "missing"
        else:
            row |= {"status": "completed", "run": run.relative_to(folder.path).as_posix(), **collect_run(run, spec)}
        rows.append(row)
    first = ["row", "method", "strategy", "seed", "status", "rule"]
    first += [f"{kind}: {metric}" for kind in ("paper", "metric") for metric in metrics]
    first += [VALIDATION, *FLOORS, TEST_SAMPLES]
    last = ["payload_bytes", "wire_bytes", "gradient_steps", "rounds", "clients", "seconds", "run", *BESIDE]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [*first, *(name for name in names if name not in (*first, *last)), *last]
    # as objects, whole numbers stay whole in a column with missing values
    return pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=columns, dtype=object)


def collect_run(run: Path, spec: ComparisonSpec) -> dict[str, Any]:
    """The columns of a finished run. Bytes are those of the whole training, in both directions."""
    lines = RunFolder(run).lines(with_clients=False)
    summary = RunFolder(run).summary()
    rule, metric = summary["headline"]["rule"], spec.metrics[0]
    sizes = summary["bytes"]
    payload = sizes["payload_up"] + sizes["payload_down"]
    is_float32 = summary.get("settings", {}).get("wire-dtype", "float32") == "float32"
    figures: dict[str, Any] = {name: summary.get(name) for name in ("gradient_steps", "rounds", "clients", "companion")}
    figures |= {f"metric: {metric}": value_of(summary, metric) for metric in spec.metrics}
    figures |= {name: summary["floor"][name] for name in FLOORS}
    return figures | {
        "rule": rule,
        VALIDATION: validation_of(lines, metric, rule),
        TEST_SAMPLES: summary["headline"].get("rows"),
        **_every_figure(summary),
        "payload_bytes": payload,
        "wire_bytes": sizes["wire_up"] + sizes["wire_down"],
        "seconds": round(summary["seconds"], 1),
        "values": payload / 4 / max(summary["rounds"], 1) if is_float32 else None,
        "curve": curve_of(lines, metric, rule),
        "doubts": "; ".join(doubts_of_clients(summary)),
    }


def _every_figure(summary: Mapping[str, Any]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for rule, values in {**summary["rules"], ENSEMBLE: summary.get("ensemble", {})}.items():
        figures |= {f"{rule} {name}": value for name, value in values.items() if name not in NO_FIGURES}
    for word, key in DOMAIN_KEYS.items():
        for domain, rules in summary.get(key, {}).items():
            figures[f"{word} {domain}"] = rules.get(summary["headline"]["rule"])
    for name, value in summary.get("classes", {}).get("macro", {}).items():
        figures[f"{MACRO} {name}"] = value
    return figures


def value_of(summary: Mapping[str, Any], metric: Metric) -> float | None:
    """The value of a metric in a run's summary."""
    headline = summary["headline"]
    name = str(metric)
    if metric.figure == MACRO:
        name = f"{MACRO} accuracy"
    elif not metric.of_domain and metric.rule != ENSEMBLE:
        figure = headline["figure"] if metric.figure == "headline" else metric.figure
        name = f"{metric.rule or headline['rule']} {figure}"
    return _every_figure(summary).get(name)


def _by_round(
    lines: Iterable[Mapping[str, Any]], rule: str, split: str, average: str = "mean", domain: str = ""
) -> pd.Series:
    """Round -> mean accuracy over clients, or over those of a domain, in each evaluation."""
    values = {}
    for line in lines:
        evaluation = line.get("evaluation", {})
        rules = evaluation.get("domains", {}).get(domain, {}) if domain else evaluation.get("rules", {})
        figures = rules.get(rule, {}).get(split, {})
        if figures.get(average) is not None:
            values[line["round"]] = figures[average]
    return pd.Series(values, dtype=float)


def curve_of(lines: Sequence[Mapping[str, Any]], metric: Metric, method_rule: str) -> pd.DataFrame:
    """All evaluations under a metric's rule: `accuracy` by round, with the bytes of training so far, `payload` and
    `wire`.

    Args:
        lines: of metrics.jsonl. method_rule: the method's own rule.
    """
    if metric.rule == ENSEMBLE:
        values = {line["round"]: line["ensemble"]["accuracy"] for line in lines if "ensemble" in line}
        accuracies = pd.Series(values, dtype=float)
    else:
        domain = metric.figure if metric.of_domain else ""
        accuracies = _by_round(lines, metric.rule_of(method_rule), "test", metric.average, domain)
    return accuracies.to_frame("accuracy").join(sent_by_round(lines))


def validation_of(lines: Sequence[Mapping[str, Any]], metric: Metric, method_rule: str) -> float | None:
    """A metric's figure on validation samples: of the last evaluation or the last five if the metric is that, else the
    highest. None without validation samples; the untrained models of round 0 never count."""
    rule = metric.rule_of(method_rule)
    means = _by_round(lines, rule, "validation")
    means = means[means.index > 0]
    figure = "selected" if metric.of_domain else metric.figure
    is_last = figure in ("final", "final-unweighted", MACRO)
    if figure != "last-5" and not is_last:
        evaluations = [with_members(line) for line in lines if "evaluation" in line]
        means = means[means.index.isin(rounds_to_choose_from(evaluations, rule)[0])]
    if means.empty:
        return None
    if figure == "last-5":
        return statistics.fmean(means[-5:])
    return float(means.iloc[-1] if is_last else means.max())


# --- one variant of each method ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The variant that was chosen for a method in a row.

    Attributes:
        tried: label of each variant -> its accuracy on validation samples.
        chosen: the label; "" while a trial is missing.
    """

    row: str
    method: str
    tried: Mapping[str, MeanStd | None]
    chosen: str

    @property
    def values(self) -> str:
        """The values of the chosen variant: `gamma = 10`."""
        return self.chosen.removeprefix(f"{self.method}, ")


def choose_variants(spec: ComparisonSpec, frame: pd.DataFrame) -> tuple[ComparisonSpec, pd.DataFrame, list[Choice]]:
    """The comparison and its finished trials; with `choose`, those of the chosen variants under their methods' names.

    Args:
        frame: of all trials.
    """
    trials = frame[frame["status"] == "completed"]
    if not spec.choose:
        return spec, trials, []
    methods = {}
    for entry in spec.methods:
        label = entry.varied_of or entry.label
        methods[label] = replace(entry, label=label, varied_of="", varied={})
    choices = []
    shown_as = {(row.label, entry.label): entry.label for row in spec.rows for entry in spec.methods}
    for row in spec.rows:
        tried_by_method: dict[str, dict[str, MeanStd | None]] = {}
        for entry in spec.methods:
            if entry.varied_of:
                del shown_as[row.label, entry.label]
                accuracy = summarise(runs_of(trials, row.label, entry.label)[VALIDATION])
                tried_by_method.setdefault(entry.varied_of, {})[entry.label] = accuracy
        for method, tried in tried_by_method.items():
            best = best_of(tried, len(spec.seeds))
            choices.append(Choice(row.label, method, tried, best))
            shown_as[row.label, best] = method
    labels = [shown_as.get(labels) for labels in zip(trials["row"], trials["method"], strict=True)]
    trials = trials.assign(method=labels).dropna(subset="method")
    return replace(spec, methods=tuple(methods.values())), trials, choices


def best_of(tried: Mapping[str, MeanStd | None], seeds: int) -> str:
    """The label with the highest accuracy, the first of equal ones; "" while a seed is missing."""
    means = {label: accuracy.mean for label, accuracy in tried.items() if accuracy and accuracy.seeds == seeds}
    if not means or len(means) < len(tried):
        return ""
    best = max(means.values())
    # means of the same accuracies may differ in their last digit
    return next(label for label, mean in means.items() if isclose(mean, best))


# --- means and differences of the finished trials -----------------------------------------------------------------


def runs_of(trials: pd.DataFrame, row: str, method: str) -> pd.DataFrame:
    """The trials of a method in a row, by seed."""
    return trials[(trials["row"] == row) & (trials["method"] == method)].set_index("seed")


def means_of(spec: ComparisonSpec, trials: pd.DataFrame) -> pd.DataFrame:
    """A line for each row, method and metric: `mean`, `std` and number of `seeds`, and the mean costs."""
    lines: list[dict[str, Any]] = []
    for row in spec.rows:
        for method in spec.methods:
            runs = runs_of(trials, row.label, method.label)
            costs = {name: runs[column].astype(float).mean() for name, column in COSTS.items()}
            for metric in spec.metrics:
                value = summarise(runs[f"metric: {metric}"]) or MeanStd(float("nan"), None, 0)
                lines.append({"row": row.label, "method": method.label, "metric": str(metric), **vars(value), **costs})
    return pd.DataFrame(lines).astype({"std": float})


def floor(trials: pd.DataFrame, row: str, name: str = MAJORITY) -> MeanStd | None:
    """The accuracy of the majority class in a row: in each seed its mean over methods.

    Args:
        name: `Metric.floor`.
    """
    return summarise(trials[trials["row"] == row].astype({name: float}).groupby("seed")[name].mean())


def differences(spec: ComparisonSpec, trials: pd.DataFrame) -> pd.DataFrame:
    """A line for each row, metric and method but the baseline: its difference to the baseline, paired by seed.

    Columns: `row`, `metric`, `method`, `baseline`, common `seeds`, mean `difference` (shares of 1), `low` and `high`
    (95 % t interval), `p`, and `significant` among the methods of a row and metric.
    """
    baseline = spec.baseline_label
    lines = []
    for row in spec.rows:
        baseline_runs = runs_of(trials, row.label, baseline)
        for metric in spec.metrics:
            name = f"metric: {metric}"
            for method in spec.methods:
                if method.label != baseline:
                    runs = runs_of(trials, row.label, method.label)
                    lines.append((row.label, str(metric), method.label, baseline, runs[name], baseline_runs[name]))
    return _contrasts(lines)


def gains_of_exchange(spec: ComparisonSpec, trials: pd.DataFrame) -> pd.DataFrame:
    """What the exchange adds, in the columns of `differences`: a rule of `CONTROLS` minus its counterpart in the runs
    of `local` with the same encoder, paired by seed."""
    lines = []
    for row in spec.rows:
        for method in spec.methods:
            runs = runs_of(trials, row.label, method.label)
            control_label = control_of(spec, trials, row.label, method.label)
            control_runs = runs_of(trials, row.label, control_label)
            for rule, control in CONTROLS.items():
                # the headline has no column of its own
                for figure in (spec.metrics[0].figure, "selected", "final"):
                    name, control_name = f"{rule} {figure}", f"{control} {figure}"
                    if {name, control_name} <= {*trials} and difference(runs[name], control_runs[control_name]):
                        baseline = f"{control_label}: {control}"
                        lines.append((row.label, name, method.label, baseline, runs[name], control_runs[control_name]))
                        break
    return _contrasts(lines)


def _contrasts(lines: Sequence[tuple[str, str, str, str, pd.Series, pd.Series]]) -> pd.DataFrame:
    rows: list[list[Any]] = []
    for row, metric, method, baseline, figures, baseline_figures in lines:
        gap = difference(figures, baseline_figures)
        numbers = [gap.seeds, gap.mean, gap.low, gap.high, gap.p] if gap else [0, None, None, None, None]
        rows.append([row, metric, method, baseline, *numbers])
    columns = ["row", "metric", "method", "baseline", "seeds", "difference", "low", "high", "p"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.astype(dict.fromkeys(("difference", "low", "high", "p"), float) | {"seeds": "Int64"})
    table["significant"] = pd.Series(index=table.index, dtype=object)
    for _, tested in table.dropna(subset="p").groupby(["row", "metric"]):
        table.loc[tested.index, "significant"] = pd.Series(rejected(tested["p"].tolist()), tested.index, dtype=object)
    return table


def control_of(spec: ComparisonSpec, trials: pd.DataFrame, row: str, method: str) -> str:
    """The label of `local` with the same encoder as this method, so that only the exchange differs; "" if none."""
    runs = trials[trials["row"] == row]
    encoders = runs.loc[runs["method"] == method, "encoder"]
    controls = runs[(runs["strategy"] == "local") & runs["encoder"].isin(encoders)]
    labels = controls["method"].unique().tolist()
    return spec.control_label if spec.control_label in labels else next(iter(labels), "")


# --- files -------------------------------------------------------------------------------------------------------


def for_file(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the columns of table.csv."""
    return frame.drop(columns=BESIDE)


def differences_csv(spec: ComparisonSpec, trials: pd.DataFrame) -> str:
    """The content of differences.csv: differences to the baseline, and what the exchange adds."""
    tables = [differences(spec, trials), gains_of_exchange(spec, trials)]
    return as_csv(pd.concat([table for table in tables if len(table)] or tables[:1]))
