"""The in-process grid that trains clients of one architecture together."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message, MessageType

from protosphere.client_app.app import train_together
from protosphere.client_app.cohort import Cohorts
from protosphere.launch.grid import LocalGrid, NodeConfig
from protosphere.models import model_for

MOST_WORK = 30e6  # of a batch on a CPU: `benchmarks.cohort` finds the loop ahead above that
SIZE = 100  # clients at once, unless another number is asked for
LISTED = 10  # clients that are named where several are meant

log = logging.getLogger("protosphere")


class CohortGrid(LocalGrid):
    """A LocalGrid of one worker. Clients of one architecture whose messages to train wait are answered at once; all
    other messages one after the other.

    Args:
        run_config, nodes: as LocalGrid's.
        workers: 1.
        size: clients trained together at most; the memory that a step takes grows with it.
    """

    def __init__(
        self,
        run_config: Mapping[str, Any],
        nodes: Sequence[NodeConfig],
        workers: int = 1,
        size: int = SIZE,
    ):
        if workers != 1:
            raise ValueError(f"a cohort trains in one process, but {workers} workers are set")
        super().__init__(run_config, nodes)
        self.size = size
        self.cohorts = Cohorts(self._say, MOST_WORK)
        self._models = {number: self._model(node) for number, node in self.nodes.items()}
        self._logged_reasons: set[tuple[str, str]] = set()

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to the first message that waits, and to those that go with it."""
        pending = {message_id: self._pending[message_id] for message_id in message_ids if message_id in self._pending}
        if not pending:
            return []
        first_id = next(iter(pending))
        model = self._model_of(pending[first_id])
        if model is None:
            return super().pull_messages([first_id])
        cohort_ids = [message_id for message_id, message in pending.items() if self._model_of(message) == model]
        messages = [self._pending.pop(message_id) for message_id in cohort_ids[: self.size]]
        return train_together([(message, self._context(message)) for message in messages], self.cohorts)

    def _model_of(self, message: Message) -> str | None:
        """Of the client that is to train; None for another message."""
        if message.metadata.message_type != MessageType.TRAIN:
            return None
        return self._models.get(message.metadata.dst_node_id)

    def _model(self, node: NodeConfig) -> str:
        return str(node.get("model", "")) or model_for(str(self.run_config["models"]), int(node["partition-id"]))

    def _say(self, model: str, reason: str) -> None:
        if (model, reason) in self._logged_reasons:
            return
        self._logged_reasons.add((model, reason))
        clients = sorted(int(node["partition-id"]) for node in self.nodes.values() if self._model(node) == model)
        names = ", ".join(map(str, clients[:LISTED]))
        if len(clients) > LISTED:
            names += f" and {len(clients) - LISTED} more"
        log.info("clients %s (%s) train one after the other: %s", names, model, reason)
