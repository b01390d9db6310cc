"""A Flower Grid in this process: the same ServerApp and ClientApp without SuperLink or Ray.

It serves tests, benchmarks and single GPUs. Messages are built, serialised and answered as in Flower's own simulation.
With more than one worker, clients run in spawned processes (not threads, since torch's settings are process-wide).
"""

import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from protosphere.client_app.app import app as client_app
from protosphere.client_app.site import simulate
from protosphere.core.files import unsettled
from protosphere.core.flower import APP_RAISED, SERVER_NODE, WORKER_DIED, stamp, take_identity
from protosphere.core.memory import freed_memory_kept, keep_freed_memory
from protosphere.launch.workers import end_with_parent, without_main_module
from protosphere.record.folder import append_log
from protosphere.server_app.app import run, said
from protosphere.server_app.callbacks import OnRound
from protosphere.server_app.status import USER_ERRORS
from protosphere.strategies import known_settings

NodeConfig = dict[str, bool | int | float | str]
# Flower stores the bytes of arrays as memory views, which cannot be pickled for a worker process
ForkingPickler.register(memoryview, lambda view: (bytes, (bytes(view),)))


class LocalGrid(Grid):
    """Nodes of this process.

    Attributes:
        simulated: a node is not restarted after its worker has died.
        in_turn: every message is answered, however long the others take, so no client is late.

    Args:
        run_config: the run's flat configuration, as Flower fuses it.
        nodes: one node_config per node (partition-id, num-partitions, perhaps model and data-path).
        workers: with 1, a message is answered when its reply is pulled. More are spawned processes, each with a
            contiguous block of `nodes`.
    """

    simulated = in_turn = True

    def __init__(self, run_config: Mapping[str, Any], nodes: Sequence[NodeConfig], workers: int = 1):
        self.run_config = run_config
        self.run_id = secrets.randbits(62)
        # random like Flower's own, so that nothing depends on them
        self.nodes = {secrets.randbits(62): node_config for node_config in nodes}
        # by message id, in order of arrival
        self._pending: dict[str, Message] = {}
        self._futures: dict[str, Future[Message]] = {}
        self._workers: list[ProcessPoolExecutor] = []
        if workers > 1:
            spawn = get_context("spawn")
            self._workers = [ProcessPoolExecutor(1, spawn, _begin_worker) for _ in range(workers)]
        take_identity(self.run_id, task_id=1)
        simulate()

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        """Methods of Flower's grids that our server does not need."""
        raise NotImplementedError("an in-process grid has no SuperLink; push messages, and pull their replies")

    set_run = create_message = send_and_receive = _refuse
    run = property(_refuse)

    def get_node_ids(self) -> list[int]:
        """All nodes, which are present from the start."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Accept messages; with several workers they start at once."""
        positions = {node: position for position, node in enumerate(self.nodes)}
        ids = []
        for message in messages:
            message_id, node = secrets.token_hex(16), message.metadata.dst_node_id
            stamp(message, message_id)
            self._pending[message_id] = message
            if self._workers:
                worker = self._workers[positions[node] * len(self._workers) // len(positions)]
                # the first message starts the process
                with without_main_module():
                    self._futures[message_id] = worker.submit(_work, message, self._context(node))
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return one reply that is ready; with one worker, answer the next message now."""
        ready = next(filter(self._is_ready, message_ids), "")
        if not ready:
            return []
        if ready in self._futures and self._futures[ready].exception():
            # if a worker dies, all its messages fail; the first is the one that it was working on
            ready = next(name for name, future in self._futures.items() if future.done() and future.exception())
        return [self._answer(self._pending.pop(ready))]

    def _is_ready(self, message_id: str) -> bool:
        if message_id in self._futures:
            return self._futures[message_id].done()
        return message_id in self._pending

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if not self._workers:
            return _work(message, self._context(node))
        try:
            return self._futures.pop(message.metadata.message_id).result()
        except BrokenProcessPool as error:
            return Message(Error(WORKER_DIED, f"a worker process ended: {error}"), reply_to=message)

    def _context(self, node: int) -> Context:
        return Context(self.run_id, node, dict(self.nodes[node]), RecordDict(), dict(self.run_config))

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)


def run_in_process(
    run_config: Mapping[str, Any],
    *,
    clients: int,
    workers: int = 1,
    show: Callable[[str], None] = print,
    opened: Callable[[Path], None] = lambda folder: None,
    grid_of: Callable[..., LocalGrid] = LocalGrid,
    on_round: OnRound | None = None,
) -> Path:
    """Do a whole run in this process, like `flwr run`. Its lines, and the reason of a failure, are written to its
    run.log.

    Args:
        run_config: settings by name; defaults apply to missing ones.
        show: called with each line of the run.
        opened: called with the run's folder as soon as it exists.
        grid_of: makes the grid from (configuration, nodes, workers).
        on_round: called with the line of every round after its checkpoint is written; returning False ends the run.

    Returns:
        The run's folder.

    Raises:
        SettingError, RosterError, RunError: one sentence each.
    """
    config = known_settings(run_config.get("strategy", "")) | dict(run_config)
    nodes: list[NodeConfig] = [{"partition-id": i, "num-partitions": clients} for i in range(clients)]
    lines: list[str] = []
    folders: list[Path] = []

    def hear(line: str) -> None:
        lines.append(line)
        show(line)

    def open_folder(folder: Path) -> None:
        folders.append(folder)
        opened(folder)

    grid = grid_of(config, nodes, workers)
    try:
        # clients in this process sync their states to disk together with the server's checkpoint
        with said(hear), freed_memory_kept(), unsettled.wait() if workers == 1 else nullcontext():
            return run(grid, Context(grid.run_id, SERVER_NODE, {}, RecordDict(), config), open_folder, on_round)
    except Exception as error:
        lines.append(f"error: {error}" if isinstance(error, USER_ERRORS) else traceback.format_exc())
        raise
    finally:
        grid.close()
        for folder in folders:
            # a run without a round has removed its folder
            if folder.is_dir():
                append_log(folder / "run.log", "".join(f"{line}\n" for line in lines))


def _work(message: Message, context: Context) -> Message:
    """Answer one message like Flower's worker: an exception becomes an error reply."""
    try:
        return client_app(message, context)
    except Exception as error:
        reason = "".join(traceback.format_exception(error))
        return Message(Error(APP_RAISED, reason), reply_to=message)


def _begin_worker() -> None:
    simulate()
    keep_freed_memory()
    end_with_parent()
