"""A cell as a task of a Ray cluster: the whole run in one process of whichever node has room.

The nodes share nothing but the folder of the comparison: data and clients' models are in each node's own
PROTOSPHERE_HOME, and the models go when the cell has ended.
"""

import hashlib
import os
import socket
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import FILE, ComparisonFolder
from protosphere.comparison.jobs import OUTPUT, PATIENCE, Job, Start, Stop
from protosphere.comparison.resources import Share
from protosphere.comparison.trials import Cell
from protosphere.core.home import discard_stores
from protosphere.launch.flower_run import KeptLines
from protosphere.launch.grid import run_in_process
from protosphere.launch.processes import import_path
from protosphere.launch.ray_cluster import join
from protosphere.record.folder import RunFolder
from protosphere.server_app.app import USER_ERRORS


def perform(
    settings: Mapping[str, Any], clients: int, comparison: tuple[str, str], place: str, keep_models: bool
) -> str:
    """Run a cell in this process.

    Args:
        settings: of the run.
        comparison: the comparison's folder, and a digest of the comparison.json that must be there.
        place: the cell's folder.

    Returns:
        Why it failed, in a sentence; empty when it did not.
    """
    folder, digest = comparison
    if _digest(Path(folder)) != digest or not Path(place).is_dir():
        return (
            f"the comparison's folder {folder} is not to be found on {socket.gethostname()}; give --results a folder "
            "on a file system that all nodes of the Ray cluster share."
        )
    with (Path(place) / OUTPUT).open("a", encoding="utf-8") as output:

        def say(line: str) -> None:
            output.write(line + "\n")
            output.flush()

        say(f"on {socket.gethostname()}, process {os.getpid()}")
        lines = KeptLines(say)

        def opened(folder: Path) -> None:
            lines.opened = folder

        reason = ""
        config = {**settings, "results-dir": place}
        try:
            run_in_process(config, clients=clients, show=lines.hear, opened=opened)
        except USER_ERRORS as error:
            reason = str(error)
            lines.hear(f"error: {error}")
        except Exception as error:
            reason = f"an error of the program on {socket.gethostname()}: {type(error).__name__}: {error}"
            lines.hear(traceback.format_exc())
        lines.save()
    if lines.folder is not None and not keep_models:
        discard_stores(lines.folder.name, RunFolder(lines.folder).token)
    return reason


def _digest(folder: Path) -> str:
    try:
        return hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
    except OSError:
        return ""


class TaskJob(Job):
    """A cell's task."""

    def __init__(self, folder: ComparisonFolder, cell: Cell, place: int, ray: Any, share: Share, keep_models: bool):
        super().__init__(folder, cell, place)
        self._ray = ray
        # one that died is said, and not begun anew in a folder that holds half a run; no cell sees what another kept
        # in its process
        remote = ray.remote(num_cpus=share.cpus_per_client, num_gpus=share.gpus_per_client, max_retries=0, max_calls=1)(
            perform
        )
        comparison = str(folder.path), _digest(folder.path)
        settings = {**cell.settings, "report": share.reports}
        self.result = remote.remote(settings, cell.clients, comparison, str(self._cell_folder), keep_models)

    def over(self) -> bool:
        """See `Job`."""
        return bool(self._ray.wait([self.result], timeout=0)[0])

    def _problem(self) -> str:
        try:
            reason = str(self._ray.get(self.result))
        except self._ray.exceptions.RayTaskError as error:
            return f"its task broke off: {str(error).strip().rpartition(chr(10))[2]}"
        except self._ray.exceptions.RayError as error:
            return f"its task died ({type(error).__name__}): its process was killed, or its node has gone."
        if not reason and self._folder.run_of(self.cell) is None:
            return f"its task ended, but {self._cell_folder} holds no finished run; is that folder shared by all nodes?"
        return reason


@contextmanager
def tasks(folder: ComparisonFolder, share: Share, keep_models: bool) -> Iterator[tuple[Start, Stop]]:
    """Cells as tasks of the cluster, each begun as soon as a node has room; it ends all tasks of a process that leaves
    it, however that ended."""
    ray = join(share.ray, runtime_env={"env_vars": {"PYTHONPATH": import_path()}})

    def start(cell: Cell, place: int) -> TaskJob:
        return TaskJob(folder, cell, place, ray, share, keep_models)

    def stop(jobs: Sequence[TaskJob]) -> None:
        for job in jobs:
            ray.cancel(job.result, force=True)
        if jobs:
            ray.wait([job.result for job in jobs], num_returns=len(jobs), timeout=PATIENCE)

    try:
        yield start, stop
    finally:
        ray.shutdown()
