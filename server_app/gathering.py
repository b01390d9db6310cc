"""The start of a run: asks nodes for their identities until enough clients have answered."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice, zip_longest

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from protosphere.core.client_names import client_names
from protosphere.core.flower import in_turn, is_simulated, pulled
from protosphere.core.settings import Settings
from protosphere.core.text import quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    MOST_NAMED,
    Agreement,
    RosterError,
    Terms,
    agree,
    nobody_for,
    refuse_too_few,
)
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
        unreadable_nodes: nodes whose answer is no identity.
    """

    def __init__(self, content: RecordDict | None = None):
        self.unreadable_nodes: set[int] = set()
        self._content = content or RecordDict()
        self._times_to_ask: dict[int, float] = {}  # node -> the time from which it may be asked again
        self._silent_nodes: set[int] = set()
        self._pending_messages: dict[str, tuple[int, float]] = {}  # message id -> node and deadline

    def ask(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Query the nodes that were never asked or that answered with an error. A node that is killed and restarted
        with the same key keeps its id."""
        now = time.monotonic()
        new_nodes = sorted(node for node in nodes if self._times_to_ask.get(node, now) <= now)
        if not new_nodes:
            return
        messages = [Message(self._content, node, MessageType.QUERY) for node in new_nodes]
        deadline = math.inf if in_turn(grid) else now + QUERY_TIMEOUT
        # Flower returns None instead of an id for a node that has left, and no id at all if it accepts nothing
        for message_id, node in zip_longest(grid.push_messages(messages), new_nodes):
            if message_id:
                self._times_to_ask[node] = math.inf
                self._pending_messages[message_id] = node, deadline
            else:
                self._times_to_ask[node] = now + REFUSED

    def pull(self, grid: Grid) -> list[tuple[int, Identity]]:
        """The answers that have arrived, with their nodes. If clients answer in turn
        (`protosphere.core.flower.in_turn`), it waits for all of them, since none is late."""
        answers = self._pull_once(grid)
        while in_turn(grid) and self._pending_messages:
            more = self._pull_once(grid)
            # workers may need seconds
            pause(more)
            answers += more
        return answers

    def _pull_once(self, grid: Grid) -> list[tuple[int, Identity]]:
        answers: list[tuple[int, Identity]] = []
        if not self._pending_messages:
            return answers
        for message_id, reply in pulled(grid, self._pending_messages):
            if message_id not in self._pending_messages:
                continue
            node, _ = self._pending_messages.pop(message_id)
            if isinstance(reply, str) or reply.has_error():
                self._times_to_ask[node] = time.monotonic() + RETRY
                problem = reply if isinstance(reply, str) else _describe_error(reply.error.reason)
            else:
                try:
                    answers.append((node, decode_identity(reply.content)))
                    continue
                except MessageError as error:
                    self.unreadable_nodes.add(node)
                    problem = f"its answer cannot be read: {quoted(str(error), LONGEST_PROBLEM)}"
            log.warning("node %d could not say who it is: %s", node, problem)
        return answers

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
                log.warning("node %d did not say who it is within %.0f seconds", node, QUERY_TIMEOUT)
        return False

    def forget(self, node: int) -> None:
        """Forget a node that has left, so that it is asked again when it returns."""
        self._times_to_ask.pop(node, None)


def pause(answers: Sequence[object]) -> None:
    """Pause before the next look, unless something arrived."""
    if not answers:
        time.sleep(POLL)


def _describe_error(reason: str | None) -> str:
    # in a simulation the reason is a whole traceback, whose last line is the error
    lines = (reason or "").strip().splitlines() or ["unknown error"]
    return f"the error {quoted(lines[-1], LONGEST_PROBLEM)} came back."


class Gathering:
    """The clients that have answered so far, and whether they are enough.

    Args:
        terms: what the server knows about the run besides its settings.
        earlier: for a resumed run whose clients come and go: the partitions that took part before it was cut. As many
            of these must be present as a start needs.
    """

    def __init__(self, settings: Settings, terms: Terms, queries: Queries, earlier: Set[int] | None = None):
        self.settings = settings
        self.terms = terms
        self.queries = queries
        self.earlier = earlier
        self._identities: dict[int, Identity] = {}  # by node, in order of arrival
        self._last_answer_time = 0.0

    def run(self, grid: Grid) -> Agreement:
        """Wait for all clients of the run, then leave out those that do not fit
        (`protosphere.server_app.agreement.agree`).

        A node whose answer fits no partition counts like one that does not answer: it delays the start until
        `start-timeout`.

        Raises:
            RosterError: too few by `start-timeout`, or too few that fit together.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        while True:
            self.queries.ask(grid, grid.get_node_ids())
            answers = self.queries.pull(grid)
            for node, identity in answers:
                self._note_answer(node, identity)
            is_late = time.monotonic() > deadline
            if is_late or not self.queries.is_waiting():
                self._drop_replaced_nodes(grid)
                if self._is_complete(grid):
                    break
            if is_late:
                self._refuse_missing()
                break
            pause(answers)

        agreement = agree(self._identities.items(), self.settings, self.terms)
        refuse_too_few(agreement, self.settings, self._count_needed())
        for node, (partition, why) in agreement.left_out.items():
            # problems were reported on arrival
            if not self._identities[node].problem:
                warn_left_out(partition, node, why, self._identities[node])
        if not self.settings.takes_newcomers and (nobody := nobody_for(agreement)):
            log.warning("warning: %s", nobody)
        return agreement

    def _note_answer(self, node: int, identity: Identity) -> None:
        self._identities.pop(node, None)
        self._identities[node] = identity
        self._last_answer_time = time.monotonic()
        if identity.problem:
            why = identity.problem.removeprefix(f"client {identity.partition}: ")
            warn_left_out(identity.partition, node, f"it says: {quoted(why, LONGEST_PROBLEM)}", identity)

    def _drop_replaced_nodes(self, grid: Grid) -> None:
        """Forget nodes that have left and whose partition has a newer node."""
        newest_nodes = {identity.partition: node for node, identity in self._identities.items()}
        if len(newest_nodes) == len(self._identities):
            return
        listed = set(grid.get_node_ids())
        for node, identity in list(self._identities.items()):
            if node not in listed and newest_nodes[identity.partition] != node:
                del self._identities[node]

    # --- whether it is enough -----------------------------------------------------------------------------

    def _is_complete(self, grid: Grid) -> bool:
        """Whether the start need not wait any longer: `min-clients` clients fit; or every partition has an answer; or,
        in a simulation, whose nodes are all present from the start, every node has answered."""
        expected = self._count_expected()
        if is_simulated(grid):
            answered = self._identities.keys() | self.queries.unreadable_nodes
            return len(answered) >= max(1, expected) and {*grid.get_node_ids()} <= answered
        if self.settings.min_clients:
            return self._count_fitting() >= self._count_needed()
        partitions = {identity.partition for identity in self._identities.values()}
        has_all = 0 < expected <= len(partitions) and all(partition in partitions for partition in range(expected))
        # otherwise a client that claims to be the only one could take over the run by answering first
        if expected == 1 and not self.settings.clients:
            return has_all and time.monotonic() - self._last_answer_time >= QUERY_TIMEOUT
        return has_all

    def _count_expected(self) -> int:
        """The number of clients in the run, if it is known: 0 while no client has told it, or if two claims have
        equally many supporters."""
        if self.settings.clients:
            return self.settings.clients
        # a client that cannot take part does not know the number of clients
        votes = Counter(identity.partitions for identity in self._identities.values() if not identity.problem)
        first, second = (*votes.most_common(2), (0, 0), (0, 0))[:2]
        return first[0] if first[1] > second[1] else 0

    def _count_needed(self) -> int:
        """How many clients must be present for a start with `min-clients`; 0 without it."""
        needed = self.settings.min_clients
        return needed if self.earlier is None else min(needed, len(self.earlier))

    def _count_fitting(self) -> int:
        """How many of the clients that count towards a start fit together; 0 while two groups are equally large."""
        try:
            fitting = agree(self._identities.items(), self.settings, self.terms).identities.keys()
        except RosterError:
            return 0
        return len(fitting if self.earlier is None else fitting & self.earlier)

    def _refuse_missing(self) -> None:
        """At the deadline, fewer nodes have answered than the run has clients."""
        expected = self._count_needed() or self._count_expected()
        due = range(expected) if self.earlier is None else self.earlier
        present = {identity.partition for identity in self._identities.values()}
        answered = len(self._identities.keys() | self.queries.unreadable_nodes)
        if self.earlier is not None:
            # any number of other clients may answer
            answered = len(present & self.earlier)
        # if the claimed numbers differ, that is the problem
        if answered >= expected > 0 or (self._identities and not expected):
            return
        # a client may claim two thousand million clients
        missing = list(islice((partition for partition in due if partition not in present), MOST_NAMED))
        number = sum(partition in due for partition in present)
        names = f" (missing partitions: {', '.join(map(str, missing))})" if missing else ""
        raise RosterError(
            f"{number} of {expected or 'an unknown number of'} clients answered within `start-timeout` "
            f"{self.settings.start_timeout:g} s{names}; start or restart the missing SuperNodes or raise the timeout."
            + "".join(_quote_problems(self._identities)[:MOST_NAMED])
        )


def _quote_problems(identities: Mapping[int, Identity]) -> Sequence[str]:
    """The problems of clients that cannot take part, by node."""
    sentences = []
    for node, identity in identities.items():
        if identity.problem:
            problem = quoted(identity.problem, LONGEST_PROBLEM)
            sentences.append(f" Client {identity.partition} (node {node}) says: {problem}")
    return sentences


def warn_left_out(partition: int, node: int, why: str, identity: Identity) -> None:
    """Warn that a client is left out."""
    name = client_names([vars(identity)]).get(partition)
    log.warning("warning: client %d (%snode %d) is left out: %s", partition, f"{name}, " if name else "", node, why)
