"""Runs beside each other: in which settings they differ, what each of them reached, and whether the clients of one are
better off than those of another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protosphere.comparison.plan import OF_A_ROW
from protosphere.core.settings import ENDS, MAY_DIFFER_ON_RESUME
from protosphere.record.confusion import macro_of
from protosphere.record.metrics_lines import readable_size
from protosphere.reports.results import Results

RESAMPLES = 10_000
# runs that differ in none of these have the same clients with the same rows
OF_CLIENTS = (OF_A_ROW | {"seed"}) - {"models", "feature-dim", "shared-init", "fraction-train"}


@dataclass(frozen=True)
class Gain:
    """Accuracy of one run's clients less that of another's, row by row of the table that they share.

    Attributes:
        mean: over all test rows. low, high: ends of its 95 % bootstrap interval over clients.
        better, worse: how many clients have more, and less.
    """

    mean: float
    low: float
    high: float
    better: int
    worse: int

    def __str__(self) -> str:
        mean, low, high = (f"{100 * share:+.2f}" for share in (self.mean, self.low, self.high))
        return (
            f"{mean} points [{low}, {high}], a 95 % interval over clients (bootstrap); {self.better} clients better, "
            f"{self.worse} worse"
        )


def differing_settings(runs: Sequence[Results]) -> Iterator[tuple[str, list[str]]]:
    """Setting -> its value in each run, of those in which they differ."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    for name in names:
        values = [run.settings.get(name, "-") for run in runs]
        if name not in MAY_DIFFER_ON_RESUME - ENDS and len(set(map(repr, values))) > 1:
            yield name, [str(value) for value in values]


def figures(runs: Sequence[Results]) -> Iterator[tuple[str, list[str]]]:
    """What is measured -> its value in each run, `-` where it has none."""
    summaries = [run.summary for run in runs]
    yield "state", ["completed" if run.finished else "not finished" for run in runs]
    yield "rounds", [str(summary["rounds"]) for summary in summaries]
    yield "headline, %", [_percent(summary["headline"]["accuracy"]) for summary in summaries]
    yield "of", [f"{summary['headline']['rule']}, {summary['headline']['figure']}" for summary in summaries]
    for rule in dict.fromkeys(rule for summary in summaries for rule in summary["rules"]):
        for figure in ("selected", "final"):
            values = [summary["rules"].get(rule, {}).get(figure) for summary in summaries]
            yield from _measured(f"{rule}, {figure}, %", values, _percent)
    yield "majority class, %", [_percent(next(iter(summary["floor"].values()), None)) for summary in summaries]
    macros = [macro_of(run.lines) for run in runs]
    yield from _measured("macro accuracy, %", [macro.get("accuracy") for macro in macros], _percent)
    yield from _measured("macro F1, %", [macro.get("f1") for macro in macros], _percent)
    areas = [next((line["roc_auc"]["mean"] for line in reversed(run.lines) if "roc_auc" in line), None) for run in runs]
    yield from _measured("ROC AUC, final", areas, "{:.4f}".format)
    for way in ("payload", "wire"):
        sizes = [summary["bytes"][f"{way}_up"] + summary["bytes"][f"{way}_down"] for summary in summaries]
        yield way, [readable_size(size) for size in sizes]
    steps = [summary.get("gradient_steps") for summary in summaries]
    yield from _measured("gradient steps a client and round", steps, "{:.4g}".format)
    yield "seconds", [f"{summary['seconds']:.0f}" for summary in summaries]


def _measured(
    name: str, values: Sequence[float | None], show: Callable[[float], str]
) -> Iterator[tuple[str, list[str]]]:
    """A figure that some runs have; nothing where none has it."""
    if any(value is not None for value in values):
        yield name, ["-" if value is None else show(value) for value in values]


def gain(first: Results, other: Results, seed: int = 0) -> Gain | str:
    """How the clients of `other` fare against their own selves in `first`, each by its run's rule, after the last
    evaluation; a sentence where they are not the same clients with the same test rows.

    The interval is of 10,000 draws of as many clients, with repeats, each with all its rows: the 2.5th and 97.5th
    percentiles of the difference over all rows. It speaks of other clients like these, and not of other seeds.

    Raises:
        SettingError: the figures of one cannot be read.
    """
    for name in sorted(OF_CLIENTS):
        if first.settings.get(name) != other.settings.get(name):
            return f"their clients are not the same: setting `{name}` differs"
    correct, rows = [], []
    before, after = first.at_the_end, other.at_the_end
    for client in sorted(before.keys() & after.keys()):
        (old, count), (new, other_count) = before[client], after[client]
        if count != other_count:
            return (
                f"their clients are not the same: client {client} has {count} test samples in one, {other_count} in "
                "the other"
            )
        correct.append((new - old) * count)
        rows.append(count)
    if len(rows) < 2:
        return "fewer than two clients were evaluated in both"
    gained, weight = np.array(correct), np.array(rows, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(rows), size=(RESAMPLES, len(rows)))
    low, high = np.percentile(gained[draws].sum(axis=1) / weight[draws].sum(axis=1), [2.5, 97.5])
    mean = float(gained.sum() / weight.sum())
    return Gain(mean, float(low), float(high), int((gained > 1e-9).sum()), int((gained < -1e-9).sum()))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
