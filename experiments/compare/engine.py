"""Runs the cells of a comparison: each a `protosphere run` of its own, several at a time, nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.compare.cells import Cell, not_default, toml
from experiments.compare.folder import ComparisonFolder
from experiments.compare.machine import Share
from experiments.runtime.guardian import ROOT, guarded
from experiments.runtime.processes import Family, interruptible
from runs.folder import RunFolder

OUTPUT = "output.log"
OUTCOME = "outcome.json"
SETTINGS = "settings.toml"
LOOK = 0.2  # seconds
PATIENCE = 30.0  # seconds that a run has for its own clean end


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
        done = [(each.cell, each.seconds) for each in self.ended if not each.reason]
        paces = [(each.cell, each.seconds * each.rounds / each.done) for each in self.running if each.done]
        left = []
        for each in self.running:
            pace = next((whole for cell, whole in paces if cell == each.cell), None)
            whole = pace if pace is not None else _typical(each.cell, done, paces)
            if whole is None:
                return None
            left.append(max(0.0, whole - each.seconds))
        for cell in self.waiting:
            whole = _typical(cell, done, paces)
            if whole is None:
                return None
            left.append(whole)
        # no schedule beats the longest cell, nor an even share
        return max(max(left), sum(left) / self.jobs) if left else 0.0


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
    scratch = Path(tempfile.mkdtemp(prefix="protosphere-"))
    ended: list[Finished] = []
    jobs: list[_Job] = []
    try:
        with interruptible() as deafen, guarded(scratch) as tell_guardian:
            family = Family(tell_guardian)
            try:
                while waiting or jobs:
                    free = [place for place in range(share.jobs) if place not in {job.place for job in jobs}]
                    for place in free[: len(waiting)]:
                        jobs.append(_Job(folder, waiting.pop(0), share, place, family))
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
                _stop(jobs, family)
                for job in jobs:
                    # it may have come to its end in this very moment
                    if folder.run_of(job.cell) is None:
                        folder.discard(job.cell)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ended


def _typical(cell: Cell, done: Sequence[tuple[Cell, float]], paces: Sequence[tuple[Cell, float]]) -> float | None:
    """The mean of what cells like this one needed; None where none has."""
    for known in (done, paces):
        for alike in (lambda c: (c.row, c.method) == (cell.row, cell.method), lambda c: c.method == cell.method, bool):
            times = [seconds for each, seconds in known if alike(each)]
            if times:
                return sum(times) / len(times)
    return None


def _stop(jobs: Sequence["_Job"], family: Family) -> None:
    """End what is in flight: first by each run's own clean end, which knows its Flower and its Ray."""
    family.members()
    for job in jobs:
        job.process.terminate()
    deadline = time.monotonic() + PATIENCE
    for job in jobs:
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(max(0.0, deadline - time.monotonic()))
    if jobs:
        family.stop(5.0)


class _Job:
    """A cell's `protosphere run`, its words in the cell's output.log."""

    def __init__(self, folder: ComparisonFolder, cell: Cell, share: Share, place: int, family: Family):
        self.cell = cell
        self.place = place
        self._folder = folder
        self._began = time.monotonic()
        folder.discard(cell)
        own = folder.of(cell)
        own.mkdir(parents=True)
        self._output = own / OUTPUT
        # with the number of clients, whatever the default is
        asked = not_default(cell.settings) | {"clients": cell.clients}
        (own / SETTINGS).write_text(toml(asked), "utf-8")
        command = [sys.executable, "-m", "cli.main", "run", "-c", str(own / SETTINGS), "--results", str(own)]
        command += ["--outcome", str(own / OUTCOME)]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"} | share.environment(place)
        with self._output.open("w") as stream:
            self.process = family.start(
                [*command, *share.flags()], cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT
            )

    def over(self) -> bool:
        """Whether the run has ended."""
        return self.process.poll() is not None

    def running(self) -> Running:
        """How far it is."""
        done = int(self._status().get("round", 0))
        return Running(self.cell, time.monotonic() - self._began, done, int(self.cell.settings["rounds"]))

    def outcome(self) -> Finished:
        """How it ended."""
        seconds = time.monotonic() - self._began
        if self.process.returncode == 0 and self._folder.run_of(self.cell):
            return Finished(self.cell, seconds)
        return Finished(self.cell, seconds, self._reason())

    def _status(self) -> dict[str, Any]:
        """Of the run, as it writes it; empty before it has a folder."""
        newest = max(self._folder.of(self.cell).glob("*/status.json"), default=None)
        return {} if newest is None else RunFolder(newest.parent).status()

    def _reason(self) -> str:
        """Why it failed: as it says itself, or, where it was killed or broke, what its output ends with."""
        with suppress(OSError, ValueError):
            if reason := json.loads((self._folder.of(self.cell) / OUTCOME).read_text("utf-8"))["reason"]:
                return str(reason)
        said = self._output.read_text("utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "without a word")
        return f"it ended with exit code {self.process.returncode}: {last}"
