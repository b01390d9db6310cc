"""Runs the cells of a comparison, several at a time: each a `protosphere run` of its own, or a task of a Ray cluster.
Nothing is left behind."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.jobs import Finished, Job, Running, processes
from protosphere.comparison.ray_tasks import tasks
from protosphere.comparison.resources import Share
from protosphere.comparison.trials import Cell
from protosphere.launch.processes import interruptible

LOOK = 0.2  # seconds


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
        seconds_left = []
        for cell, passed in [
            *((job.cell, job.seconds) for job in self.running),
            *((cell, 0.0) for cell in self.waiting),
        ]:
            own = [seconds for other, seconds in paces if other == cell]
            total = own[0] if own else _typical(cell, done, paces)
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
    """Run the cells that have no finished run, in their order; what a cell cut short left is discarded first.

    Args:
        tell: called a few times a second, and whenever a cell has ended.
        keep_models: leave the clients' models of finished cells in the stores' folder.

    Returns:
        How each of them ended. Those that failed do not stop the others, and keep what they left.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came in; all was stopped and cells in flight were discarded.
    """
    waiting = [cell for cell in cells if folder.run_of(cell) is None]
    before = len(cells) - len(waiting)
    ended: list[Finished] = []
    jobs: list[Job] = []
    where = tasks(folder, share, keep_models) if share.ray else processes(folder, share)
    with interruptible() as deafen, where as (start, stop):
        try:
            while waiting or jobs:
                free = [place for place in range(share.jobs) if place not in {job.place for job in jobs}]
                for place in free[: len(waiting)]:
                    jobs.append(start(waiting.pop(0), place))
                for job in [job for job in jobs if job.over()]:
                    jobs.remove(job)
                    ended.append(job.outcome())
                    if not keep_models:
                        folder.discard_models(job.cell)
                tell(Progress(before, ended, [job.running() for job in jobs], waiting, share.jobs))
                if jobs:
                    time.sleep(LOOK)
        finally:
            deafen()
            stop(jobs)
            for job in jobs:
                # it may have come to its end in this very moment
                if folder.run_of(job.cell) is None:
                    folder.discard(job.cell)
    return ended


def _typical(cell: Cell, done: Sequence[tuple[Cell, float]], paces: Sequence[tuple[Cell, float]]) -> float | None:
    """The mean of what cells like this one needed; None where none has."""
    for timings in (done, paces):
        for matches in (
            lambda c: (c.row, c.method) == (cell.row, cell.method),
            lambda c: c.method == cell.method,
            bool,
        ):
            times = [seconds for other_cell, seconds in timings if matches(other_cell)]
            if times:
                return sum(times) / len(times)
    return None
