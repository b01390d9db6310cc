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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import FILE, ComparisonFolder
from protosphere.comparison.jobs import OUTPUT, PATIENCE
from protosphere.comparison.resources import Share
from protosphere.comparison.trials import Cell
from protosphere.core.files import open_to_append
from protosphere.core.home import discard_stores
from protosphere.launch.grid import KeptLines, run_in_process
from protosphere.launch.processes import import_path
from protosphere.launch.ray_cluster import join
from protosphere.server_app.app import USER_ERRORS


@dataclass(frozen=True)
class Order:
    """What a node is told of a cell.

    Attributes:
        comparison: the comparison's folder. digest: of the comparison.json that must be there.
        place: the cell's folder.
    """

    settings: Mapping[str, Any]
    clients: int
    comparison: str
    digest: str
    place: str
    keep_models: bool


def order_of(folder: ComparisonFolder, cell: Cell, reports: bool, keep_models: bool) -> Order:
    """What a node is told of a cell, whose folder is prepared.

    Args:
        reports: whether its run ends with a report of its own.
    """
    settings = {**cell.settings, "report": reports}
    where = str(folder.path), _digest(folder.path), str(folder.of(cell))
    return Order(settings, cell.clients, *where, keep_models)


def perform(order: Order) -> str:
    """Run a cell in this process.

    Returns:
        Why it failed, in a sentence; empty when it did not.
    """
    if _digest(Path(order.comparison)) != order.digest or not Path(order.place).is_dir():
        return (
            f"the comparison's folder {order.comparison} is not to be found on {socket.gethostname()}; give --results "
            "a folder on a file system that all nodes of the Ray cluster share."
        )
    with open_to_append(Path(order.place) / OUTPUT) as output:

        def say(line: str) -> None:
            output.write(line + "\n")
            output.flush()

        say(f"on {socket.gethostname()}, process {os.getpid()}")
        lines = KeptLines(say)

        def opened(folder: Path) -> None:
            lines.opened = folder

        reason = ""
        config = {**order.settings, "results-dir": order.place}
        try:
            run_in_process(config, clients=order.clients, show=lines.hear, opened=opened)
        except USER_ERRORS as error:
            reason = str(error)
            lines.hear(f"error: {error}")
        except Exception as error:
            reason = f"an error of the program on {socket.gethostname()}: {type(error).__name__}: {error}"
            lines.hear(traceback.format_exc())
        lines.save()
    if lines.folder is not None and not order.keep_models:
        discard_stores(lines.folder.name)
    return reason


def _digest(folder: Path) -> str:
    try:
        return hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
    except OSError:
        return ""


class Tasks:
    """Where cells run on a Ray cluster that this process has joined."""

    def __init__(self, folder: ComparisonFolder, share: Share, keep_models: bool, ray: Any):
        self._folder = folder
        self._share = share
        self._keep_models = keep_models
        self._ray = ray

    def start(self, cell: Cell, place: int) -> Any:
        """Begin a cell, whose folder is prepared, as soon as a node has room, whichever of the places it has here."""
        cpus, gpus = self._share.cpus_per_client, self._share.gpus_per_client
        # one that died is said, and not begun anew in a folder that holds half a run; no cell sees what another kept
        # in its process
        task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1)(perform)
        return task.remote(order_of(self._folder, cell, self._share.reports, self._keep_models))

    def failure(self, cell: Cell, task: Any) -> str | None:
        """Why a cell's task failed; empty where it did not, None while it is on."""
        if not self._ray.wait([task], timeout=0)[0]:
            return None
        try:
            reason = str(self._ray.get(task))
        except self._ray.exceptions.RayTaskError as error:
            return f"its task broke off: {str(error).strip().rpartition(chr(10))[2]}"
        except self._ray.exceptions.RayError as error:
            return f"its task died ({type(error).__name__}): its process was killed, or its node has gone."
        if not reason and self._folder.run_of(cell) is None:
            place = self._folder.of(cell)
            return f"its task ended, but {place} holds no finished run; is that folder shared by all nodes?"
        return reason

    def stop(self, tasks: Sequence[Any]) -> None:
        """End what is in flight."""
        for task in tasks:
            self._ray.cancel(task, force=True)
        if tasks:
            self._ray.wait(list(tasks), num_returns=len(tasks), timeout=PATIENCE)


@contextmanager
def on_cluster(folder: ComparisonFolder, share: Share, keep_models: bool) -> Iterator[Tasks]:
    """Tasks of the cluster, which ends all tasks of a process that leaves it, however that ended."""
    ray = join(share.ray, runtime_env={"env_vars": {"PYTHONPATH": import_path()}})
    try:
        yield Tasks(folder, share, keep_models, ray)
    finally:
        ray.shutdown()
