"""Finished runs written by hand, whose figures are known, and comparisons of them."""

import json
import re

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import choose_variants, collect
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, Printed
from protosphere.comparison.trials import Trial
from protosphere.record.metrics_lines import MAJORITY
from protosphere.record.summary import MAJORITY_UNWEIGHTED
from protosphere.strategies import known_settings

METHODS = (Entry("FedProto", {"strategy": "fedproto"}), Entry("Proto_Norm", {"strategy": "protonorm"}))
ACCURACIES = {"FedProto": (0.8, 0.7, 0.9), "Proto_Norm": (0.85, 0.8, 0.81)}
SEEDS = (0, 1, 2)
CIFAR, MNIST = Entry("CIFAR-10", {"dataset": "cifar10"}), Entry("MNIST", {"dataset": "mnist"})


def comparison(**changes):
    """Two methods on two data sets by the last accuracy, over three seeds."""
    values = {"methods": METHODS, "datasets": (CIFAR, MNIST), "seeds": SEEDS, "metrics": (Metric("", "final"),)}
    values["paper"] = (Printed("CIFAR-10", "FedProto", "final", 82.9),)
    return ComparisonSpec("test", **(values | changes))


def line(number, accuracy):
    """A line of metrics.jsonl: a round has 100 bytes of payload and 150 on the wire each way."""
    way = 1 if number else 0
    test = {"mean": accuracy, "std": 0.1, "worst": 0.0}
    sizes = {"payload_up": 100 * way, "payload_down": 100 * way, "wire_up": 150 * way, "wire_down": 150 * way}
    rules = {"local-prototypes": {"test": test}, "classifier": {"test": test | {"mean": accuracy / 2}}}
    return {
        "round": number,
        "bytes": sizes | {"evaluation_wire_up": 10, "evaluation_wire_down": 20},
        "evaluation": {"rules": rules},
    }


def write_run(folder, settings, accuracy, floor=0.5, validation=None):
    """A finished run whose accuracy rises to `accuracy` in two rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line(0, 0.1), line(1, accuracy / 2), line(2, accuracy)]
    if validation is not None:
        lines[-1]["evaluation"]["rules"]["local-prototypes"]["validation"] = {"mean": validation}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (folder / "settings.json").write_text(json.dumps(settings))
    values = {"selected": None, "selected_round": None, "best": accuracy, "client-best": 0.99, "last-5": 0.4}
    values |= {"client-best-unweighted": 0.98, "final-unweighted": 0.45, "clients": 2, "worst": 0.2}
    rules = {"local-prototypes": accuracy, "classifier": accuracy / 2}
    summary = {
        "status": "completed",
        "strategy": settings["strategy"],
        "dataset": settings["dataset"],
        "clients": 2,
        "rounds": 2,
        "headline": {"rule": "local-prototypes", "figure": "final", "accuracy": accuracy, "rows": 90},
        "floor": {MAJORITY: floor, MAJORITY_UNWEIGHTED: floor - 0.2},
        "rules": {rule: values | {"final": final} for rule, final in rules.items()},
        "ensemble": {"best": 0.3, "last-5": 0.2, "final": 0.25, "rows": 10},
        "domains": {"usps": {"local-prototypes": 0.6}},
        "domains-unweighted": {"usps": {"local-prototypes": 0.65}},
        "classes": {"rule": "local-prototypes", "macro": {"accuracy": 0.55, "f1": 0.5}},
        "bytes": {"payload_up": 200, "payload_down": 200, "wire_up": 300, "wire_down": 300}
        | {"evaluation_wire_up": 30, "evaluation_wire_down": 40},
        "seconds": 12.34,
        "settings": settings,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def change_summary(folder, change):
    """Change a finished run's summary by `change(summary)`."""
    path = folder / "summary.json"
    if path.exists():
        summary = json.loads(path.read_text())
        change(summary)
        path.write_text(json.dumps(summary))


def trials_of(spec):
    """The trials of a comparison, with unchecked settings."""
    known = {name: value for name, value in known_settings().items() if name not in ("results-dir", "resume")}
    trials = []
    for row in spec.rows:
        for method in spec.methods:
            for seed in spec.seeds:
                name = re.sub(r"[^a-z0-9-]+", "-", f"{row.label}-{method.label}-{seed}".lower())
                settings = known | method.settings | {"seed": seed, "clients": 2}
                trials.append(Trial(name, row.label, method.label, seed, settings))
    return trials


def folder_of(root, spec, missing=()):
    """A comparison's folder with a run for each trial on CIFAR-10 but the missing ones, given as (method, seed)."""
    trials = trials_of(spec)
    folder = ComparisonFolder.create(spec, trials, str(root))
    for trial in trials:
        if trial.row == "CIFAR-10" and (trial.method, trial.seed) not in missing:
            accuracy = ACCURACIES[trial.method][trial.seed]
            write_run(folder.of(trial) / "run", trial.settings, accuracy, 0.5 + 0.1 * trial.seed)
    return folder


def finished(folder, spec):
    """The frame of the finished trials."""
    return choose_variants(spec, collect(folder, spec, trials_of(spec)))[1]
