"""A cell in flight, and how it ended: here each is a `protosphere run` in a process of its own, forked where the system
can from one that has loaded what a run needs."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.resources import Share
from protosphere.comparison.trials import Cell, not_default, toml
from protosphere.comparison.warm import COMMANDS, Child, Template, can_fork
from protosphere.launch.guardian import ROOT, guarded
from protosphere.launch.processes import Family
from protosphere.record.folder import RunFolder

OUTPUT = "output.log"
OUTCOME = "outcome.json"
SETTINGS = "settings.toml"
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


class Job(ABC):
    """A cell in one of the places that there are, its words in the cell's output.log."""

    def __init__(self, folder: ComparisonFolder, cell: Cell, place: int):
        self.cell = cell
        self.place = place
        self._folder = folder
        self._began = time.monotonic()
        folder.discard(cell)
        self._cell_folder = folder.of(cell)
        self._cell_folder.mkdir(parents=True)
        self._output = self._cell_folder / OUTPUT
        # with the number of clients, whatever the default is
        settings = not_default(cell.settings) | {"clients": cell.clients}
        (self._cell_folder / SETTINGS).write_text(toml(settings), "utf-8")

    @abstractmethod
    def over(self) -> bool:
        """Whether the run has ended."""

    @abstractmethod
    def _problem(self) -> str:
        """Why the run that has ended failed; empty when it did not."""

    def running(self) -> Running:
        """How far it is."""
        done = int(self._status().get("round", 0))
        return Running(self.cell, time.monotonic() - self._began, done, int(self.cell.settings["rounds"]))

    def outcome(self) -> Finished:
        """How it ended."""
        return Finished(self.cell, time.monotonic() - self._began, self._problem())

    def _status(self) -> dict[str, Any]:
        """Of the run, as it writes it; empty before it has a folder."""
        newest = max(self._cell_folder.glob("*/status.json"), default=None)
        return {} if newest is None else RunFolder(newest.parent).status()


# begins a cell anew in a place, and ends what is in flight
Start = Callable[[Cell, int], Job]
Stop = Callable[[Sequence[Any]], None]


class ProcessJob(Job):
    """A cell's `protosphere run`."""

    def __init__(
        self,
        folder: ComparisonFolder,
        cell: Cell,
        place: int,
        share: Share,
        family: Family,
        template: Template | None = None,
    ):
        super().__init__(folder, cell, place)
        arguments = ["run", "-c", str(self._cell_folder / SETTINGS), "--results", str(self._cell_folder)]
        arguments += ["--outcome", str(self._cell_folder / OUTCOME), *share.flags()]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"} | share.environment(place)
        child = template.start(arguments, ROOT, environment, self._output) if template else None
        self.process: Child | subprocess.Popen[str] = child or self._start_anew(family, arguments, environment)

    def _start_anew(
        self, family: Family, arguments: Sequence[str], environment: dict[str, str]
    ) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", COMMANDS, *arguments]
        with self._output.open("w") as stream:
            return family.start(command, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT)

    def over(self) -> bool:
        """See `Job`."""
        return self.process.poll() is not None

    def _problem(self) -> str:
        """As it says itself, or, where it was killed or broke, what its output ends with."""
        if self.process.returncode == 0 and self._folder.run_of(self.cell):
            return ""
        with suppress(OSError, ValueError):
            if reason := json.loads((self._cell_folder / OUTCOME).read_text("utf-8"))["reason"]:
                return str(reason)
        output_lines = self._output.read_text("utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(output_lines) if line.strip()), "without a word")
        return f"it ended with exit code {self.process.returncode}: {last}"


@contextmanager
def processes(folder: ComparisonFolder, share: Share) -> Iterator[tuple[Start, Stop]]:
    """Cells as processes of this machine, each with its share of it; none outlives it, nor this process."""
    scratch = Path(tempfile.mkdtemp(prefix="protosphere-"))
    try:
        with guarded(scratch) as tell_guardian:
            family = Family(tell_guardian)
            # runs over Flower start processes of their own, which load all anew
            template = Template(family, tell_guardian) if can_fork() and share.in_process else None

            def start(cell: Cell, place: int) -> ProcessJob:
                return ProcessJob(folder, cell, place, share, family, template)

            try:
                yield start, partial(_stop, family)
            finally:
                if template is not None:
                    template.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _stop(family: Family, jobs: Sequence[ProcessJob]) -> None:
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
