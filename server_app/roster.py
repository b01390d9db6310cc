"""The clients of a run, from its start to its end: members join, leave and return."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from protosphere.core.client_names import client_names, use_client_names
from protosphere.core.flower import in_turn, is_simulated, pulled
from protosphere.core.seeds import generator
from protosphere.core.settings import Settings
from protosphere.core.text import quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    MOST_NAMED,
    ROUNDS,
    Agreement,
    RosterError,
    Terms,
    agree,
    all_left_out,
    as_entry,
    describe_change,
    describe_difference,
    describe_misfit,
    nobody_for,
    refuse_changes,
    refuse_too_few,
)
from protosphere.wire.messages import MessageError, decode_identity
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")

QUERY_TIMEOUT = 30.0  # seconds to wait for an answer; a later one is still accepted
POLL = 0.05  # seconds between two looks for new nodes and for answers
RETRY = 5.0  # seconds until a node is asked again after its process died
REFUSED = 1.0  # seconds until a node is asked again after Flower did not accept its message


@dataclass
class Member:
    """A client that takes part in the run, or did.

    Attributes:
        identity: None until a client of a resumed run has answered.
        node: the node that answers for it; None while it is away.
        joined, left: the round at whose start it joined or left; 0 if it was there from the start, or stays.
        absent: consecutive rounds without its node.
        earlier: its entry in the folder of a resumed run.
    """

    identity: Identity | None = None
    node: int | None = None
    joined: int = 0
    left: int = 0
    absent: int = 0
    earlier: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entry(self) -> Mapping[str, Any]:
        """Its entry for roster.json, without rounds."""
        return self.earlier if self.identity is None else as_entry(self.identity)


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


class Roster:
    """Clients by partition id. Flower's node ids are random and, for nodes without a key, change at a restart. They are
    therefore addresses only: a node represents the partition that it answers for, as long as Flower lists the node.

    Attributes:
        members: by partition, in the order in which they joined. Clients that have left stay, because their uploads
            still count.
        waiting: partition -> node and identity of clients that have answered and are away, or no members yet.
        listed_nodes: the nodes that Flower listed at the last refresh.

    Args:
        terms: what the server knows about the run besides its settings.
        question: the content of the query to nodes.
    """

    def __init__(self, settings: Settings, terms: Terms, question: RecordDict | None = None):
        self.settings = settings
        self.terms = terms
        self.is_open = settings.takes_newcomers  # whether clients may join and leave during the run
        self.members: dict[int, Member] = {}
        self.waiting: dict[int, tuple[int, Identity]] = {}
        self.listed_nodes: frozenset[int] = frozenset()
        self.number = 0  # of clients in the run, including those that are left out
        self.queries = Queries(question)
        self._answers: dict[int, Identity] = {}  # at the start: by node, in order of arrival
        self._last_answer_time = 0.0
        # of a resumed run whose clients come and go: the partitions that took part before it was cut
        self._earlier: Set[int] | None = None
        self._left_out: dict[int, tuple[int, str]] = {}  # node -> partition and reason
        self._partition_of_node: dict[int, int] = {}  # partition of every node that represents, or has represented, one
        self._blocked_nodes: set[int] = set()  # nodes that answered for a partition whose node is still there
        self.name_clients()

    @property
    def identities(self) -> dict[int, Identity]:
        """Partition -> identity of the members, also of those that have left."""
        return {p: member.identity for p, member in self.members.items() if member.identity is not None}

    @property
    def nodes(self) -> dict[int, int]:
        """Partition -> node of the members that are present; nobody else gets messages."""
        return {p: member.node for p, member in self.members.items() if member.node is not None}

    @property
    def num_classes(self) -> int:
        """K; all clients have the same list of classes."""
        return len(next(iter(self.identities.values())).class_names)

    def sample(self, server_round: int) -> list[int]:
        """The partitions that train in a round: round(rho M) of the M present members with training samples, at least
        one.

        They are drawn from the stream (seed, round, "sample"), independently of node ids and earlier rounds.
        """
        identities = self.identities
        candidates = sorted(partition for partition in self.nodes if identities[partition].trains)
        random = generator(self.settings.seed, "round", server_round, "sample")
        order = torch.randperm(len(candidates), generator=random)
        count = self.settings.count_sampled(len(candidates))
        return sorted(candidates[index] for index in order[:count].tolist())

    # --- the start ----------------------------------------------------------------------------------------

    def gather(self, grid: Grid, entries: Sequence[Mapping[str, Any]] = (), last_round: int = 0) -> None:
        """Gather the clients that answer, and leave out those that do not fit (`protosphere.server_app.agreement`).

        Args:
            entries: of a resumed run, the roster in its folder, from `as_json`. Other clients take no part, or join in
                the next round if clients may come and go.
            last_round: its last finished round.

        Raises:
            RosterError: too few by `start-timeout`, too few that fit together, or none that has taken part before.
        """
        restores = bool(entries) and self.is_open
        if restores:
            self._restore(entries, last_round)
        self._wait_for_clients(grid)
        agreement = agree(self._answers.items(), self.settings, self.terms)
        refuse_too_few(agreement, self.settings, self._count_needed())
        for node, (partition, why) in agreement.left_out.items():
            # problems were reported on arrival
            if not self._answers[node].problem:
                warn_left_out(partition, node, why, self._answers[node])
        if not self.is_open and (nobody := nobody_for(agreement)):
            log.warning("warning: %s", nobody)
        self.number, self._left_out = agreement.number, agreement.left_out
        for partition, identity in sorted(agreement.identities.items()):
            node = agreement.nodes[partition]
            self._partition_of_node[node] = partition
            if not restores:
                self.members[partition] = Member()
            member = self.members.get(partition)
            if member is not None:
                member.identity = identity
            if member is None or member.left:
                self.waiting[partition] = node, identity
            else:
                member.node = node
        if entries and not restores:
            new = self.members.keys() - {entry["partition"] for entry in entries}
            self.leave_out(dict.fromkeys(new, "it took no part when the run was started."))
        if not self.nodes:
            raise RosterError("no client is present at the start; at least one must join before round 1.")
        self.name_clients()

    def _restore(self, entries: Sequence[Mapping[str, Any]], last_round: int) -> None:
        """Restore the members from before an interruption, who have yet to answer."""
        for entry in sorted(entries, key=lambda entry: (entry.get("joined", 0), entry["partition"])):
            joined, left_round = entry.get("joined", 0), entry.get("left", 0)
            if joined <= last_round:
                earlier = {name: value for name, value in entry.items() if name not in ROUNDS}
                left_round = left_round if left_round <= last_round else 0
                self.members[entry["partition"]] = Member(joined=joined, left=left_round, earlier=earlier)
        self._earlier = {partition for partition, member in self.members.items() if not member.left}

    def _wait_for_clients(self, grid: Grid) -> None:
        """Wait for all clients of the run. A node whose answer fits no partition counts like one that does not answer:
        it delays the start until `start-timeout`.

        Raises:
            RosterError: too few by `start-timeout`.
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
                    return
            if is_late:
                self._refuse_missing()
                return
            pause(answers)

    def _note_answer(self, node: int, identity: Identity) -> None:
        self._answers.pop(node, None)
        self._answers[node] = identity
        self._last_answer_time = time.monotonic()
        if identity.problem:
            why = identity.problem.removeprefix(f"client {identity.partition}: ")
            warn_left_out(identity.partition, node, f"it says: {quoted(why, LONGEST_PROBLEM)}", identity)

    def _drop_replaced_nodes(self, grid: Grid) -> None:
        """Forget nodes that have left and whose partition has a newer node."""
        newest_nodes = {identity.partition: node for node, identity in self._answers.items()}
        if len(newest_nodes) == len(self._answers):
            return
        listed = set(grid.get_node_ids())
        for node, identity in list(self._answers.items()):
            if node not in listed and newest_nodes[identity.partition] != node:
                del self._answers[node]

    def _is_complete(self, grid: Grid) -> bool:
        """Whether the start need not wait any longer: `min-clients` clients fit; or every partition has an answer; or,
        in a simulation, whose nodes are all present from the start, every node has answered."""
        expected = self._count_expected()
        if is_simulated(grid):
            answered = self._answers.keys() | self.queries.unreadable_nodes
            return len(answered) >= max(1, expected) and {*grid.get_node_ids()} <= answered
        if self.settings.min_clients:
            return self._count_fitting() >= self._count_needed()
        partitions = {identity.partition for identity in self._answers.values()}
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
        votes = Counter(identity.partitions for identity in self._answers.values() if not identity.problem)
        first, second = (*votes.most_common(2), (0, 0), (0, 0))[:2]
        return first[0] if first[1] > second[1] else 0

    def _count_needed(self) -> int:
        """How many clients must be present for a start with `min-clients`; 0 without it."""
        needed = self.settings.min_clients
        return needed if self._earlier is None else min(needed, len(self._earlier))

    def _count_fitting(self) -> int:
        """How many of the clients that count towards a start fit together; 0 while two groups are equally large."""
        try:
            fitting = agree(self._answers.items(), self.settings, self.terms).identities.keys()
        except RosterError:
            return 0
        return len(fitting if self._earlier is None else fitting & self._earlier)

    def _refuse_missing(self) -> None:
        """At the deadline, fewer nodes have answered than the run has clients."""
        expected = self._count_needed() or self._count_expected()
        due = range(expected) if self._earlier is None else self._earlier
        present = {identity.partition for identity in self._answers.values()}
        answered = len(self._answers.keys() | self.queries.unreadable_nodes)
        if self._earlier is not None:
            # any number of other clients may answer
            answered = len(present & self._earlier)
        # if the claimed numbers differ, that is the problem
        if answered >= expected > 0 or (self._answers and not expected):
            return
        # a client may claim two thousand million clients
        missing = list(islice((partition for partition in due if partition not in present), MOST_NAMED))
        number = sum(partition in due for partition in present)
        names = f" (missing partitions: {', '.join(map(str, missing))})" if missing else ""
        raise RosterError(
            f"{number} of {expected or 'an unknown number of'} clients answered within `start-timeout` "
            f"{self.settings.start_timeout:g} s{names}; start or restart the missing SuperNodes or raise the timeout."
            + "".join(_quote_problems(self._answers)[:MOST_NAMED])
        )

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Continue without some clients, for reasons that were not known when they were gathered.

        Args:
            reasons: partition -> what is wrong with the client, and the remedy.

        Raises:
            RosterError: too few are left.
        """
        for partition, why in sorted(reasons.items()):
            member = self.members[partition]
            assert member.identity is not None
            node = self.waiting.pop(partition)[0] if member.node is None else member.node
            self._left_out[node] = partition, why
            warn_left_out(partition, node, why, member.identity)
            if member.earlier:
                member.identity, member.node = None, None
            else:
                del self.members[partition]
        refuse_too_few(Agreement(self.number, self.identities, self.nodes, self._left_out), self.settings)

    def refuse_changes(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Stop a resumed run whose clients are not those it was started with.

        Args:
            entries: the roster in the run's folder, from `as_json`.

        Raises:
            RosterError: of `refuse_changes`.
        """
        identities = self.identities
        if self.is_open:
            # a client that has not returned yet is compared on its return
            entries = [entry for entry in entries if entry["partition"] in identities]
        new = [as_entry(identity) for _, identity in sorted(identities.items())]
        refuse_changes(entries, new, all_left_out(self._left_out))

    def as_json(self) -> list[dict[str, Any]]:
        """The roster for the run's folder, without node ids, which differ from run to run."""
        names = client_names(member.entry for member in self.members.values())
        entries = []
        for partition, member in sorted(self.members.items()):
            entry = {**member.entry, "name": names.get(partition, "")}
            if member.joined:
                entry["joined"] = member.joined
            if member.left:
                entry["left"] = member.left
            entries.append(entry)
        return entries

    # --- between rounds -----------------------------------------------------------------------------------

    def refresh(self, grid: Grid) -> None:
        """Before a round, let new nodes take over their partitions. Each one has `QUERY_TIMEOUT` to answer."""
        self.listed_nodes = frozenset(grid.get_node_ids())
        self.queries.ask(grid, self.listed_nodes)
        while True:
            answers = self.queries.pull(grid)
            for node, identity in answers:
                self._take_answer(node, identity)
            if not self.queries.is_waiting():
                return
            pause(answers)

    def _take_answer(self, node: int, identity: Identity) -> None:
        """Let a node that appeared after the start represent its partition, or none.

        A node represents one partition of a run, and a partition has one node. Otherwise one node could speak for many
        clients, and a second node could displace a client that answers.
        """
        partition = identity.partition
        earlier_partition = self._partition_of_node.get(node, partition)
        if earlier_partition != partition:
            log.warning(
                "node %d is left out: it has answered for partition %d, and a node stands for one partition of a run",
                node,
                earlier_partition,
            )
            return
        member = self.members.get(partition)
        if self.is_open and (member is None or member.node is None):
            self.waiting[partition] = node, identity
            self._partition_of_node[node] = partition
            return
        if member is None or identity != member.identity:
            log.warning("node %d is left out: %s", node, self._describe_stranger(identity))
            return
        if member.node != node and member.node in self.listed_nodes:
            # it is asked again, and takes over when Flower no longer lists the other node
            self.queries.forget(node)
            if node not in self._blocked_nodes:
                log.warning(
                    "node %d waits: node %d answers for partition %d, and Flower still lists it",
                    node,
                    member.node,
                    partition,
                )
            self._blocked_nodes.add(node)
            return
        # its name may have changed
        member.identity, member.node = identity, node
        self._partition_of_node[node] = partition
        self.name_clients()
        log.info("partition %d is back as node %d", partition, node)

    def _describe_stranger(self, identity: Identity) -> str:
        """Why a node cannot represent its partition during the run."""
        partition = identity.partition
        if identity.problem:
            return f"it says: {quoted(identity.problem, LONGEST_PROBLEM)}"
        if partition in self.members:
            return f"partition {partition} was another client at the start"
        if any(partition == left_out for left_out, _ in self._left_out.values()):
            return f"partition {partition} was left out when the run began, and can take part in the next one"
        return f"partition {partition} is none of this run's"

    def misfit(self, newcomer: Identity) -> str:
        """Why a client that arrives later does not fit in with the members, or is not the earlier client of its
        partition; "" if it fits."""
        partition, identities = newcomer.partition, self.identities
        # if all members have left, a new client must fit in with them all the same; one represents them, as all agree
        candidates = (identities[p] for p in self.nodes or identities if p != partition)
        other = next(candidates, None)
        reason = describe_misfit(newcomer, self.settings, self.terms)
        if not reason and other is not None:
            reason = describe_difference(newcomer, other, self.terms)
        if not reason and partition in self.members:
            reason = describe_change(self.members[partition].entry, as_entry(newcomer))
        return reason

    def name_clients(self) -> None:
        """Use the clients' current names in everything that is printed."""
        use_client_names(client_names(map(vars, self.identities.values())))


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
