"""Asks nodes for their identities and collects the answers."""

import logging
import math
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from protosphere.core.flower import in_turn, pulled
from protosphere.core.text import quoted
from protosphere.server_app.agreement import LONGEST_PROBLEM
from protosphere.wire.messages import MessageError, decode_identity
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")

QUERY_TIMEOUT = 30.0  # seconds to wait for an answer; a later one is still accepted
POLL = 0.05  # seconds between two looks for new nodes and for answers
RETRY = 5.0  # seconds until a node is asked again after its process died
REFUSED = 1.0  # seconds until a node is asked again after Flower did not accept its message


class Queries:
    """Asks each node for its identity once, and again after an error.

    Args:
        content: the content of each query, from which clients may take the run's settings.

    Attributes:
        problems: node -> why its answer is useless.
    """

    def __init__(self, content: RecordDict | None = None):
        self.problems: dict[int, str] = {}
        self.timeout = QUERY_TIMEOUT
        self._content = content or RecordDict()
        self._times_to_ask: dict[int, float] = {}  # node -> the time from which it may be asked again
        self._silent_nodes: set[int] = set()
        self._pending_messages: dict[str, tuple[int, float]] = {}  # message id -> node and deadline

    def ask(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Query the nodes that were never asked or that answered with an error. A node that is killed and restarted
        with the same key keeps its id."""
        now = time.monotonic()
        new = sorted(node for node in nodes if self._times_to_ask.get(node, now) <= now)
        if not new:
            return
        messages = [Message(self._content, node, MessageType.QUERY) for node in new]
        deadline = math.inf if in_turn(grid) else now + self.timeout
        # Flower returns None instead of an id for a node that has left, and no id at all if it accepts nothing
        for message_id, node in zip_longest(grid.push_messages(messages), new):
            if message_id:
                self._times_to_ask[node] = math.inf
                self._pending_messages[message_id] = node, deadline
            else:
                self._times_to_ask[node] = now + REFUSED

    def pull(self, grid: Grid) -> list[tuple[int, Identity]]:
        """The answers that have arrived, with their nodes."""
        if not self._pending_messages:
            return []
        answers = []
        for message_id, reply in pulled(grid, self._pending_messages):
            if message_id not in self._pending_messages:
                continue
            node, _ = self._pending_messages.pop(message_id)
            if isinstance(reply, str):
                self._note_error(node, reply)
            elif reply.has_error():
                self._note_error(node, _describe(reply.error))
            else:
                try:
                    answers.append((node, decode_identity(reply.content)))
                except MessageError as error:
                    problem = f"its answer cannot be read: {quoted(str(error), LONGEST_PROBLEM)}"
                    self.problems[node] = problem
                    log.warning("node %d could not say who it is: %s", node, problem)
        return answers

    def is_pending(self) -> bool:
        """Whether an answer is missing, even after its deadline."""
        return bool(self._pending_messages)

    def is_waiting(self) -> bool:
        """Whether an answer may still arrive in time. A silent node (a dead one stays listed for a while) causes no
        delay beyond the timeout."""
        now = time.monotonic()
        # in the order of the questions, which is that of their deadlines
        for node, deadline in self._pending_messages.values():
            if now <= deadline:
                return True
            if node not in self._silent_nodes:
                self._silent_nodes.add(node)
                log.warning("node %d did not say who it is within %.0f seconds", node, self.timeout)
        return False

    def forget(self, node: int) -> None:
        """Forget a node that has left, so that it is asked again when it returns."""
        self._times_to_ask.pop(node, None)

    def _note_error(self, node: int, problem: str) -> None:
        log.warning("node %d could not say who it is: %s", node, problem)
        self._times_to_ask[node] = time.monotonic() + RETRY


def pause(answers: Sequence[object]) -> None:
    """Pause before the next look, unless something arrived: an in-process grid gives one answer per look, and ten
    thousand pauses would take eight minutes."""
    if not answers:
        time.sleep(POLL)


def _describe(error: Error) -> str:
    # in a simulation the reason is a whole traceback, whose last line is the error
    lines = (error.reason or "").strip().splitlines() or ["unknown error"]
    return f"the error {quoted(lines[-1], LONGEST_PROBLEM)} came back."
