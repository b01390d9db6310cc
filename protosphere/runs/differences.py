"""Runs beside each other: in which settings they differ, what each of them reached, and whether the clients of one are
better off than those of another."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protosphere.comparison.plan import OF_A_ROW
from protosphere.core.settings import ENDS, MAY_DIFFER_ON_RESUME
from protosphere.core.text import readable_size
from protosphere.record.confusion import macro_of
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
            f"{mean} points [{low}, {high}] (95 % bootstrap interval over clients); {self.better} clients better, "
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
    rules = dict.fromkeys(rule for run in runs for rule in run.summary["rules"])
    figures_by_run = [_figures_of(run, rules) for run in runs]
    for name in figures_by_run[0]:
        values = [run_figures[name] for run_figures in figures_by_run]
        if any(values):
            yield name, [value or "-" for value in values]


def _figures_of(run: Results, rules: Iterable[str]) -> dict[str, str]:
    """A run's figures in words; empty what it has not, `-` what is to be shown even where no run has it."""
    summary = run.summary
    headline, sizes, steps = summary["headline"], summary["bytes"], summary.get("gradient_steps")
    area = next((line["roc_auc"]["mean"] for line in reversed(run.lines) if "roc_auc" in line), None)
    words = {
        "state": "completed" if run.finished else "not finished",
        "rounds": str(summary["rounds"]),
        "headline, %": _percent(headline["accuracy"]) or "-",
        "of": f"{headline['rule']}, {headline['figure']}",
    }
    for rule in rules:
        for figure in ("selected", "final"):
            words[f"{rule}, {figure}, %"] = _percent(summary["rules"].get(rule, {}).get(figure))
    macro = macro_of(run.lines)
    return words | {
        "majority class, %": _percent(next(iter(summary["floor"].values()), None)) or "-",
        "macro accuracy, %": _percent(macro.get("accuracy")),
        "macro F1, %": _percent(macro.get("f1")),
        "ROC AUC, final": "" if area is None else f"{area:.4f}",
        "payload": readable_size(sizes["payload_up"] + sizes["payload_down"]),
        "wire": readable_size(sizes["wire_up"] + sizes["wire_down"]),
        "gradient steps per client per round": "" if steps is None else f"{steps:.4g}",
        "seconds": f"{summary['seconds']:.0f}",
    }


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
            return f"the clients differ: setting `{name}` is not the same"
    correct, rows = [], []
    before, after = first.at_the_end, other.at_the_end
    for client in sorted(before.keys() & after.keys()):
        (old, count), (new, other_count) = before[client], after[client]
        if count != other_count:
            return f"the clients differ: client {client} has {count} test samples in one, {other_count} in the other"
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
    return "" if value is None else f"{100 * value:.2f}"
