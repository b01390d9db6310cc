"""Who takes part: before training every client says who it is; who does not fit is left out (`agreement.py`)."""

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from protosphere.core.home import OTHER_HOME, remedy
from protosphere.core.settings import Settings, shown
from protosphere.core.text import class_word, one_line, quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    Agreement,
    RosterError,
    Terms,
    agree,
    all_left_out,
    nobody_for,
    refuse_few_left,
)
from protosphere.wire.codec import Codec
from protosphere.wire.messages import MessageError, decode_identity
from protosphere.wire.payloads import Identity
from protosphere.wire.replies import in_turn, is_simulated, pulled

log = logging.getLogger("protosphere")

POLL = 0.05  # seconds between two looks at who is there
UNSIGNED = " Its SuperNode runs signed code alone (--trusted-entities), and this run's is not signed."
NOT_VERIFIED = 7  # Flower's code of a SuperNode that has refused the code which it was sent
RETRY = 5.0  # seconds until a node is asked again whose process died over the question


class Roster:
    """Clients by partition id. Flower's node ids are random and change when a node restarts, so they are
    only addresses: the newest node that answered for a partition stands for it.

    Attributes:
        identities: partition -> who it said it is.
        nodes: partition -> node id to send to; nobody else is sent anything.
        question: what goes with the query who a node is.
        codec: how all clients write; known when they are gathered, where the run's terms are.

    Args:
        terms: what the server itself knows of the run beside its settings; without them nothing is asked of messages.
    """

    codec: Codec | None = None

    def __init__(self, settings: Settings, terms: Terms | None = None):
        self.settings = settings
        self.terms = terms
        self.identities: dict[int, Identity] = {}
        self.nodes: dict[int, int] = {}
        self.question = RecordDict()
        # at the start: node -> who it said it is, in the order of answers; the nodes that answered for a partition; how
        # many say how many clients there are; and node -> why its answer tells nothing
        self._heard: dict[int, Identity] = {}
        self._of: dict[int, list[int]] = {}
        self._votes: Counter[int] = Counter()
        self._last_answer = 0.0
        self._unread: dict[int, str] = {}
        self._agreed = Agreement(0, {}, {}, {})
        # node -> when it may be asked again
        self._asked: dict[int, float] = {}
        self._silent: set[int] = set()
        # message id -> (node, when to stop waiting for it); a late answer is still taken
        self._pending: dict[str, tuple[int, float]] = {}

    def gather(self, grid: Grid) -> None:
        """Wait for as many clients as the run has, then leave out who does not fit
        (`protosphere.server_app.agreement.agree`). Where clients answer in turn
        (`protosphere.wire.replies.in_turn`) who was asked in time is heard, however long the others take.

        A node whose answer fits no partition takes the place of one that does not answer: it holds the start up until
        `start-timeout`, and no longer.

        Raises:
            RosterError: too few by `start-timeout`, or too few that fit together.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        late = False
        while True:
            # else nodes that fail again and again would be heard for ever
            if not late:
                self._ask(grid)
            arrived = self._answers(grid)
            for node, identity in arrived:
                self._hear(grid, node, identity)
            if self._complete(grid) and not self._waiting():
                break
            late = time.monotonic() > deadline
            if late and not (in_turn(grid) and self._waiting()):
                self._refuse_missing()
                break
            _pause(arrived)
        found = agree(self._heard.items(), self.settings, self.terms)
        self.codec = found.codec
        for node, (partition, why) in found.left_out.items():
            # of a problem it was said when it came
            if not self._heard[node].problem:
                _warn(partition, node, why)
        if nobody := nobody_for(found):
            log.warning("warning: %s", nobody)
        self._take(found)

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Go on without some clients, for what shows only when the method meets them.

        Args:
            reasons: partition -> what is wrong with it, and the remedy.

        Raises:
            RosterError: too few are left.
        """
        out = {self.nodes[partition]: (partition, why) for partition, why in sorted(reasons.items())}
        for node, (partition, why) in out.items():
            _warn(partition, node, why)
        identities = {p: identity for p, identity in self.identities.items() if p not in reasons}
        nodes = {p: node for p, node in self.nodes.items() if p not in reasons}
        found = replace(self._agreed, identities=identities, nodes=nodes, left_out=self._agreed.left_out | out)
        refuse_few_left(found, self.settings)
        self._take(found)

    def refresh(self, grid: Grid) -> None:
        """Before a round: let nodes that appeared since take over their partitions. Each gets `query-timeout`."""
        self._ask(grid)
        while True:
            arrived = self._answers(grid)
            for node, identity in arrived:
                known = self.identities.get(identity.partition)
                if identity != known:
                    difference = "was another client at the start" if known else "is none of this run's"
                    if not known and any(identity.partition == out for out, _ in self._agreed.left_out.values()):
                        difference = "was left out when the run began, and can take part in the next one"
                    problem = f"partition {identity.partition} {difference}"
                    if identity.problem:
                        problem = f"it says: {quoted(identity.problem, LONGEST_PROBLEM)}"
                    log.warning("node %d is left out: %s", node, problem)
                    continue
                self._enter(node, identity)
                log.info("partition %d is back as node %d", identity.partition, node)
            if not self._waiting():
                return
            _pause(arrived)

    @property
    def number(self) -> int:
        """How many clients the run has, those who are left out among them."""
        return self._agreed.number

    @property
    def left_out(self) -> str:
        """Who is left out and why, in sentences."""
        return all_left_out(self._agreed.left_out)

    def class_word(self, label: int) -> str:
        """A class by its name, for people."""
        identity = next(iter(self.identities.values()), None)
        return class_word(label, identity.class_names if identity else ())

    def as_json(self) -> list[dict[str, Any]]:
        """The roster for the run's folder, without node ids: those differ from run to run."""
        found = [asdict(identity) for _, identity in sorted(self.identities.items())]
        # of layouts a digest: they run to thousands of lines
        return [each | {"layouts": _digest(each["layouts"])} for each in found]

    def _hear(self, grid: Grid, node: int, identity: Identity) -> None:
        """Note who a node says it is. Of a partition's nodes those that have left since are forgotten."""
        others = self._of.setdefault(identity.partition, [])
        listed = set(grid.get_node_ids()) if others else set()
        for gone in [other for other in others if other not in listed or other == node]:
            others.remove(gone)
            self._count(self._heard.pop(gone), -1)
        others.append(node)
        self._heard[node] = identity
        self._last_answer = time.monotonic()
        self._count(identity, 1)
        if identity.problem:
            why = identity.problem.removeprefix(f"client {identity.partition}: ")
            _warn(identity.partition, node, f"it says: {quoted(why, LONGEST_PROBLEM)}")

    def _count(self, identity: Identity, votes: int) -> None:
        # who cannot take part does not know how many there are
        if not identity.problem:
            self._votes[identity.partitions] += votes

    def _expected(self) -> int:
        """How many clients the run has, as far as it is known: 0 while nobody says it, or two sides are equally
        large."""
        if self.settings.clients:
            return self.settings.clients
        first, second = (*self._votes.most_common(2), (0, 0), (0, 0))[:2]
        return first[0] if first[1] > second[1] else 0

    def _complete(self, grid: Grid) -> bool:
        """Whether nobody else is to come: somebody answered for each partition, or in a simulation, whose nodes are all
        there from the start, as many nodes as there are clients."""
        expected = self._expected()
        if expected and len(self._of) >= expected and all(partition in self._of for partition in range(expected)):
            # who says that it is the only one would make the run its own, were it the first to come
            alone = expected == 1 and not self.settings.clients and not is_simulated(grid)
            return not alone or time.monotonic() - self._last_answer >= self.settings.query_timeout
        answered = len(self._heard) + len(self._unread)
        if self._pending or not answered or answered < expected or not is_simulated(grid):
            return False
        return {*grid.get_node_ids()} <= self._heard.keys() | self._unread.keys()

    def _refuse_missing(self) -> None:
        """At the deadline: fewer nodes have answered than the run has clients."""
        expected = self._expected()
        answered = len(self._heard) + len(self._unread)
        # where the number itself is in dispute, that is what is wrong
        if answered >= expected > 0 or (self._heard and not expected):
            return
        missing = list(islice((p for p in range(expected) if p not in self._of), 20))
        number = sum(0 <= partition < expected for partition in self._of)
        problems = [
            f" Client {identity.partition} (node {node}) says: {quoted(identity.problem, LONGEST_PROBLEM)}"
            for node, identity in self._heard.items()
            if identity.problem
        ]
        raise RosterError(
            f"{number} of {expected or 'an unknown number of'} clients answered within "
            f"`start-timeout` {self.settings.start_timeout:g} s (missing partitions: "
            f"{', '.join(map(str, missing)) or 'unknown'}); start the missing SuperNodes or raise the timeout."
            + "".join(problems[:20])
        )

    def _take(self, found: Agreement) -> None:
        self._agreed = found
        self.identities, self.nodes = dict(found.identities), dict(found.nodes)

    def _enter(self, node: int, identity: Identity) -> None:
        self.identities[identity.partition] = identity
        self.nodes[identity.partition] = node

    def _ask(self, grid: Grid) -> None:
        """Query the nodes that were never asked, or have answered with an error: one that is killed and started again
        under the same key keeps its id."""
        now = time.monotonic()
        new = sorted(node for node in grid.get_node_ids() if self._asked.get(node, now) <= now)
        if not new:
            return
        messages = [Message(self.question, node, MessageType.QUERY) for node in new]
        deadline = math.inf if in_turn(grid) else now + self.settings.query_timeout
        for message_id, node in zip(grid.push_messages(messages), new, strict=False):
            # in place of an id Flower gives None for a node that has left, and no id at all when it takes nothing
            if message_id:
                self._asked[node] = math.inf
                self._pending[message_id] = node, deadline

    def _answers(self, grid: Grid) -> list[tuple[int, Identity]]:
        """The answers that have arrived.

        Raises:
            RosterError: a worker of Ray's has another home than the run.
        """
        answers = []
        for message_id, reply in pulled(grid, self._pending) if self._pending else ():
            if message_id not in self._pending:
                continue
            node, _ = self._pending.pop(message_id)
            if isinstance(reply, str):
                log.warning("node %d could not say who it is: %s", node, reply)
                self._asked[node] = time.monotonic() + RETRY
                continue
            if reply.has_error():
                if reply.error.code == OTHER_HOME and is_simulated(grid):
                    raise RosterError(remedy(f"node {node} says: {quoted(reply.error.reason or '', LONGEST_PROBLEM)}"))
                # in simulation the reason is a whole traceback; its last line is the error
                lines = (reply.error.reason or "").strip().splitlines() or ["unknown error"]
                why = UNSIGNED if reply.error.code == NOT_VERIFIED else ""
                said = quoted(lines[-1], LONGEST_PROBLEM)
                log.warning("node %d could not say who it is, an error came back: %s.%s", node, said, why)
                self._asked[node] = time.monotonic() + RETRY
                continue
            try:
                answers.append((node, decode_identity(reply.content)))
            except MessageError as error:
                self._unread[node] = f"its answer cannot be read: {quoted(str(error), LONGEST_PROBLEM)}"
                log.warning("node %d could not say who it is: %s", node, self._unread[node])
        return answers

    def _waiting(self) -> bool:
        """Whether an answer may still come in time. A node that stays silent (a dead one is listed for a while)
        holds nothing up for longer than `query-timeout`."""
        now = time.monotonic()
        # in the order in which they were asked, which is that of their deadlines
        for node, deadline in self._pending.values():
            if now <= deadline:
                return True
            if node not in self._silent:
                self._silent.add(node)
                log.warning("node %d did not say who it is within `query-timeout`", node)
        return False


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else ""


def _warn(partition: int, node: int, why: str) -> None:
    log.warning("warning: client %d (node %d) is left out: %s", partition, node, why)


def _pause(arrived: Sequence[object]) -> None:
    """Before the next look, unless something came: a grid in this process gives one answer a look, and ten thousand
    pauses are eight minutes."""
    if not arrived:
        time.sleep(POLL)


def refuse_too_few(settings: Settings, identities: Mapping[int, Identity], asked: int) -> None:
    """Stop before round 1 where a round could never close as the settings want it.

    Args:
        asked: how many clients train in a round.

    Raises:
        RosterError: names the numbers and the remedy.
    """
    if asked >= max(settings.min_train_clients, settings.min_replies):
        return
    able = sum(identity.trains for identity in identities.values())
    raise RosterError(
        f"{able} clients have training rows and {asked} of them train in a round, fewer than "
        f"`min-train-clients` {settings.min_train_clients} or `min-replies` {settings.min_replies} "
        "asks for; lower that, or raise `fraction-train`."
    )


def refuse_changes(old: list[dict[str, Any]], new: list[dict[str, Any]], left_out: str = "") -> None:
    """Stop a resumed run whose clients are not those it was started with, as `Roster.as_json` tells them.

    Args:
        left_out: who does not fit in, in sentences.

    Raises:
        RosterError: names the first client that differs, in what, and the remedy.
    """
    if len(old) != len(new):
        raise RosterError(
            f"the run had {len(old)} clients and now has {len(new)}; resume it with the same ones. {left_out}".rstrip()
        )
    for before, now in zip(old, json.loads(json.dumps(new)), strict=True):
        for name, value in now.items():
            # what it discloses follows from the settings, and is told in more words by every version
            if name == "discloses":
                continue
            # what clients had no word for when the run was begun is empty
            if before.get(name, type(value)()) != value:
                raise RosterError(
                    f"client {now['partition']} is not the one that the run was started with: its {name} was "
                    f"{_cut(before.get(name))} and is now {_cut(value)}; give it back its data and model, or start "
                    "a new run."
                )


def _cut(value: Any) -> str:
    return one_line(shown(value), LONGEST_PROBLEM)
