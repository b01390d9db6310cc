"""What a comparison takes on this machine, estimated before it starts: one round of one trial is timed."""

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
    """How many trials there are, the hours that they take, so many at a time, and the bytes that they leave."""

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


def estimate(comparison: ComparisonSpec, trials: Sequence[Trial], jobs: int) -> Cost:
    """The cost of trials, from one round of the first of them.

    A trial is taken to need as long a round as that one, by the epochs of the clients that train in it. What the timed
    run leaves is deleted.

    Raises:
        RunError: the round failed, and why.
    """
    first = replace(trials[0], settings=trials[0].settings | {"rounds": 1})
    with tempfile.TemporaryDirectory() as scratch:
        folder = ComparisonFolder.create(comparison, [first], scratch)
        (ended,) = run_trials(folder, [first], Processes(environments([first], 1)), lambda line: None)
        run = folder.run_of(first)
        if run is None:
            raise RunError(f"the cost cannot be estimated, since a round of {first.title} failed: {ended.reason}")
        seconds = float(RunFolder(run).lines()[-1]["time"]["round"])
        sizes = {path.name: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    by_round = sizes.get("metrics.jsonl", 0)
    total, size = 0.0, 0
    for trial in trials:
        rounds = int(trial.settings["rounds"])
        total += seconds * rounds * _work_of(trial) / _work_of(first)
        size += sum(sizes.values()) + rounds * by_round
    return Cost(len(trials), total / jobs / 3600, jobs, size)


def _work_of(trial: Trial) -> float:
    """Passes over clients' samples in a round."""
    return trial.clients * float(trial.settings["fraction-train"]) * max(1, int(trial.settings["local-epochs"]))
