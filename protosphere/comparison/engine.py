"""Runs the cells of a comparison, several at a time: each a `protosphere run` of its own, or a task of a Ray cluster.
Nothing is left behind."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.jobs import on_this_machine, prepare
from protosphere.comparison.ray_tasks import on_cluster
from protosphere.comparison.resources import Share
from protosphere.comparison.trials import Cell
from protosphere.core.errors import SettingError
from protosphere.launch.processes import interruptible
from protosphere.record.folder import RunFolder

LOOK = 0.2  # seconds


@dataclass(frozen=True)
class Running:
    """A cell in flight."""

    cell: Cell
    seconds: float
    done: int
    rounds: int


@dataclass(frozen=True)
class Finished:
    """A cell that ended; `reason` says in a sentence why it failed, and is empty when it did not."""

    cell: Cell
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Progress:
    """How far the cells are: those that ended in this session, those in flight, those that wait.

    `before` were finished when the session began.
    """

    before: int
    ended: Sequence[Finished]
    running: Sequence[Running]
    waiting: Sequence[Cell]
    jobs: int

    @property
    def total(self) -> int:
        """All cells."""
        return self.before + len(self.ended) + len(self.running) + len(self.waiting)

    def seconds_left(self) -> float | None:
        """How long it will still take; None before there is anything to tell it by.

        A cell is taken to need what finished cells of its row and method needed on average, else those of its method,
        else all; before any has finished, what those in flight come to at their pace so far.
        """
        done = [(finished.cell, finished.seconds) for finished in self.ended if not finished.reason]
        paces = [(job.cell, job.seconds * job.rounds / job.done) for job in self.running if job.done]
        pace_by_name = {cell.name: seconds for cell, seconds in paces}
        begun = [(job.cell, job.seconds) for job in self.running]
        seconds_left = []
        for cell, passed in [*begun, *((cell, 0.0) for cell in self.waiting)]:
            total = pace_by_name.get(cell.name, _typical(cell, done or paces))
            if total is None:
                return None
            seconds_left.append(max(0.0, total - passed))
        # no schedule beats the longest cell, nor an even share
        return max(max(seconds_left), sum(seconds_left) / self.jobs) if seconds_left else 0.0


def run_cells(
    folder: ComparisonFolder,
    cells: Sequence[Cell],
    share: Share,
    tell: Callable[[Progress], None],
    keep_models: bool = False,
) -> list[Finished]:
    """Run the cells that have no finished run, seed by seed; what a cell cut short left is discarded first.

    Args:
        tell: called a few times a second, and whenever a cell has ended.
        keep_models: leave the clients' models of finished cells in the stores' folder.

    Returns:
        How each of them ended. Those that failed do not stop the others, and keep what they left.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came in; all was stopped and cells in flight were discarded.
    """
    # seed by seed: every row and method has figures early
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    waiting = [cell for cell in sorted(cells, key=lambda cell: seeds.index(cell.seed)) if folder.run_of(cell) is None]
    before = len(cells) - len(waiting)
    ended: list[Finished] = []
    jobs: dict[int, _Job] = {}  # by place
    where = on_cluster(folder, share, keep_models) if share.ray else on_this_machine(folder, share)
    with interruptible() as deafen, where as runs:
        try:
            while waiting or jobs:
                for place in range(share.jobs):
                    if waiting and place not in jobs:
                        cell, began = waiting.pop(0), time.monotonic()
                        prepare(folder, cell)
                        jobs[place] = _Job(cell, began, runs.start(cell, place))
                for place, job in list(jobs.items()):
                    failure = runs.failure(job.cell, job.run)
                    if failure is not None:
                        del jobs[place]
                        ended.append(Finished(job.cell, time.monotonic() - job.began, failure))
                        if not keep_models:
                            folder.discard_models(job.cell)
                running = [_progress_of(folder, job) for job in jobs.values()]
                tell(Progress(before, ended, running, waiting, share.jobs))
                if jobs:
                    time.sleep(LOOK)
        finally:
            deafen()
            runs.stop([job.run for job in jobs.values()])
            for job in jobs.values():
                # it may have come to its end in this very moment
                if folder.run_of(job.cell) is None:
                    folder.discard(job.cell)
    return ended


@dataclass(frozen=True)
class _Job:
    """A cell in flight, and the process or the task that is its run."""

    cell: Cell
    began: float
    run: Any


def _progress_of(folder: ComparisonFolder, job: _Job) -> Running:
    """How far it is, as its run writes it; at round 0 before it has a folder."""
    status, done = max(folder.of(job.cell).glob("*/status.json"), default=None), 0
    if status is not None:
        # a run that fails before its first round takes its folder away, perhaps in this moment
        with suppress(SettingError):
            done = RunFolder(status.parent).status().get("round", 0)
    return Running(job.cell, time.monotonic() - job.began, int(done), int(job.cell.settings["rounds"]))


def _typical(cell: Cell, timings: Sequence[tuple[Cell, float]]) -> float | None:
    """The mean of what cells like this one needed; None where none has."""
    of_method = [(other, seconds) for other, seconds in timings if other.method == cell.method]
    of_row = [(other, seconds) for other, seconds in of_method if other.row == cell.row]
    alike = of_row or of_method or timings
    return statistics.fmean(seconds for _, seconds in alike) if alike else None
