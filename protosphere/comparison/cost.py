"""Estimates what a comparison costs on this machine, from one round of its first trial."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from protosphere.comparison.execution import Processes, environments, run_trials
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec
from protosphere.comparison.trials import Trial
from protosphere.core.errors import RunError
from protosphere.core.text import readable_size
from protosphere.record.folder import RunFolder


@dataclass(frozen=True)
class Cost:
    """Number of trials, hours with `jobs` of them at a time, and size of the results in bytes."""

    trials: int
    hours: float
    jobs: int
    size: int

    def __str__(self) -> str:
        hours = f"{self.hours:.0f} hours" if self.hours >= 1.5 else f"{60 * self.hours:.0f} minutes"
        return (
            f"{self.trials} trials, {self.jobs} at a time: about {hours} on this machine, estimated from one round, "
            f"and {readable_size(self.size)} of results"
        )


def estimate(spec: ComparisonSpec, trials: Sequence[Trial], jobs: int) -> Cost:
    """The cost of trials, if a round takes time in proportion to its clients and their local epochs.

    Raises:
        RunError: the timed round failed.
    """
    first = replace(trials[0], settings=trials[0].settings | {"rounds": 1})
    with tempfile.TemporaryDirectory() as scratch:
        folder = ComparisonFolder.create(spec, [first], scratch)
        (ended,) = run_trials(folder, [first], Processes(environments([first], 1)), lambda line: None)
        run = folder.run_of(first)
        if run is None:
            raise RunError(f"the cost cannot be estimated, since a round of {first.title} failed: {ended.reason}")
        seconds = float(RunFolder(run).lines()[-1]["time"]["round"])
        size_of_run = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        size_of_round = (run / "metrics.jsonl").stat().st_size
    total, size = 0.0, 0
    for trial in trials:
        rounds = int(trial.settings["rounds"])
        total += seconds * rounds * _work_of(trial) / _work_of(first)
        size += size_of_run + rounds * size_of_round
    return Cost(len(trials), total / jobs / 3600, jobs, size)


def _work_of(trial: Trial) -> float:
    """Passes over clients' samples in a round."""
    return trial.clients * float(trial.settings["fraction-train"]) * max(1, int(trial.settings["local-epochs"]))
