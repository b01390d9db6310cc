"""Cells as processes of this machine: each is a `protosphere run`, forked where the system can from a process that has
loaded what a run needs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.resources import Share
from protosphere.comparison.trials import Cell, not_default, toml
from protosphere.comparison.warm import COMMANDS, Child, Template, can_fork
from protosphere.launch import processes
from protosphere.launch.flower import ROOT

OUTPUT = "output.log"
OUTCOME = "outcome.json"
SETTINGS = "settings.toml"
PATIENCE = 30.0  # seconds that a run has for its own clean end
# what a run would choose by its data where nobody says it, and what a cell has chosen, or was told, already
CHOSEN = ("clients", "partition", "models")
Process = Child | subprocess.Popen[str]


def prepare(folder: ComparisonFolder, cell: Cell) -> None:
    """Empty the cell's folder, but for the settings of its run."""
    folder.discard(cell)
    folder.of(cell).mkdir(parents=True)
    # a default, too, where somebody asked for it
    settings = not_default(cell.settings) | {name: cell.settings[name] for name in CHOSEN}
    (folder.of(cell) / SETTINGS).write_text(toml(settings), "utf-8")


class Processes:
    """Where cells run on this machine.

    Args:
        template: the process that becomes runs; None where each is to be started anew.
    """

    def __init__(self, folder: ComparisonFolder, share: Share, template: Template | None):
        self._folder = folder
        self._share = share
        self._template = template

    def start(self, cell: Cell, place: int) -> Process:
        """Begin a cell, whose folder is prepared, in one of the places that there are."""
        cell_folder = self._folder.of(cell)
        output = cell_folder / OUTPUT
        arguments = ["run", "-c", str(cell_folder / SETTINGS), "--results", str(cell_folder)]
        arguments += ["--outcome", str(cell_folder / OUTCOME), *self._share.flags()]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"} | self._share.environment(place)
        child = self._template.start(arguments, ROOT, environment, output) if self._template else None
        if child is not None:
            return child
        command = [sys.executable, "-m", COMMANDS, *arguments]
        with output.open("w") as stream:
            return processes.start(
                command, PATIENCE, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT
            )

    def failure(self, cell: Cell, process: Process) -> str | None:
        """Why a run failed: as it says itself, or, where it was killed or broke, what its output ends with; empty where
        it did not, None while it is on."""
        if process.poll() is None:
            return None
        if process.returncode == 0 and self._folder.run_of(cell):
            return ""
        cell_folder = self._folder.of(cell)
        with suppress(OSError, ValueError):
            if reason := json.loads((cell_folder / OUTCOME).read_text("utf-8"))["reason"]:
                return str(reason)
        output_lines = (cell_folder / OUTPUT).read_text("utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(output_lines) if line.strip()), "without a word")
        return f"it ended with exit code {process.returncode}: {last}"

    def stop(self, runs: Sequence[Process]) -> None:
        """End what is in flight: first by each run's own clean end, which knows its Flower and its Ray."""
        for run in runs:
            run.terminate()
        deadline = time.monotonic() + PATIENCE
        for run in runs:
            with suppress(subprocess.TimeoutExpired):
                run.wait(max(0.0, deadline - time.monotonic()))
        if runs and self._template is not None:
            self._template.close()


@contextmanager
def on_this_machine(folder: ComparisonFolder, share: Share) -> Iterator[Processes]:
    """Processes of which none outlives this one, even if it is killed."""
    # runs over Flower start processes of their own, which load all anew
    template = Template() if can_fork() and share.in_process else None
    try:
        yield Processes(folder, share, template)
    finally:
        if template is not None:
            template.close()
