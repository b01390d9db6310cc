"""Who takes part: before training every client says who it is; who does not fit is left out (`agreement.py`)."""

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from protosphere.core.client_names import client_names, client_word, use_client_names
from protosphere.core.flower import NOT_VERIFIED, in_turn, is_simulated, pulled
from protosphere.core.home import OTHER_HOME, remedy
from protosphere.core.seeds import generator
from protosphere.core.settings import Settings, shown
from protosphere.core.text import class_word, one_line, quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    Agreement,
    RosterError,
    Terms,
    agree,
    all_left_out,
    misfit,
    nobody_for,
    refuse_few_left,
)
from protosphere.wire.codec import Codec
from protosphere.wire.messages import MessageError, decode_identity
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")

POLL = 0.05  # seconds between two looks at who is there
UNSIGNED = " Its SuperNode runs signed code alone (--trusted-entities), and this run's is not signed."
SPOKESMEN = 3  # members with whom a newcomer has to agree: enough to outvote it
RETRY = 5.0  # seconds until a node is asked again whose process died over the question


def select_clients(settings: Settings, candidates: Sequence[int], server_round: int) -> list[int]:
    """Partition ids that train in this round: round(rho M) of the M candidates, one at least.

    Drawn from the stream (seed, round, "sample"), so neither node ids nor earlier rounds matter.

    Args:
        candidates: the clients with training samples, in ascending order.
    """
    count = int(settings.fraction_train * len(candidates) + 0.5)
    count = min(len(candidates), max(count, 1))
    order = torch.randperm(len(candidates), generator=generator(settings.seed, "round", server_round, "sample"))
    return sorted(candidates[index] for index in order[:count].tolist())


class Roster:
    """Clients by partition id. Flower's node ids are random and change when a node restarts, so they are
    only addresses: the newest node that answered for a partition stands for it.

    Attributes:
        identities: partition -> who it said it is.
            Those who have left stay in it: what they have sent counts on.
        nodes: partition -> node id to send to, of the members; nobody else is sent anything.
        absent: partition -> node and identity of those who have answered and are no members.
        joined, left: partition -> the round at whose start a client came, or went for good; nothing of one that is
            there from the start, or stays.
        listed_nodes: those that Flower had when the roster was refreshed last.
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
        self.absent: dict[int, tuple[int, Identity]] = {}
        self.joined: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.listed_nodes: frozenset[int] = frozenset()
        # of a run that is resumed: partition -> its entry in the run's folder, of those who were there
        self._earlier_entries: dict[int, dict[str, Any]] = {}
        self._last_round = 0  # before it was cut
        # partition -> an identity and its entry, since those of many clients take long to make
        self._entries: dict[int, tuple[Identity, dict[str, Any]]] = {}
        self.question = RecordDict()
        # at the start: node -> who it said it is, in the order of answers; the nodes that answered for a partition; how
        # many say how many clients there are; and node -> why its answer tells nothing
        self._identities_by_node: dict[int, Identity] = {}
        self._nodes_by_partition: dict[int, list[int]] = {}
        self._votes: Counter[int] = Counter()
        self._last_answer_time = 0.0
        self._problems_by_node: dict[int, str] = {}
        self._agreement = Agreement(0, {}, {}, {})
        self._name_clients()
        # node -> when it may be asked again
        self._times_to_ask: dict[int, float] = {}
        self._silent_nodes: set[int] = set()
        # message id -> (node, when to stop waiting for it); a late answer is still taken
        self._pending_messages: dict[str, tuple[int, float]] = {}

    def gather(self, grid: Grid) -> None:
        """Wait for as many clients as the run has, then leave out who does not fit
        (`protosphere.server_app.agreement.agree`). Where clients answer in turn
        (`protosphere.core.flower.in_turn`) who was asked in time is heard, however long the others take.

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
            arrived = self._pull_answers(grid)
            for node, identity in arrived:
                self._note_answer(grid, node, identity)
            if self._is_complete(grid) and not self._is_waiting() and self._enough_fit():
                break
            late = time.monotonic() > deadline
            if late and not (in_turn(grid) and self._is_waiting()):
                self._refuse_missing()
                break
            _pause(arrived)
        agreement = agree(self._identities_by_node.items(), self.settings, self.terms)
        self.codec = agreement.codec
        for node, (partition, why) in agreement.left_out.items():
            # of a problem it was said when it came
            if not self._identities_by_node[node].problem:
                _warn(partition, node, why, self._identities_by_node[node])
        if not self.is_open and (nobody := nobody_for(agreement)):
            log.warning("warning: %s", nobody)
        self._take(agreement)

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Go on without some clients, for what shows only when the method meets them.

        Args:
            reasons: partition -> what is wrong with it, and the remedy.

        Raises:
            RosterError: too few are left.
        """
        newly_left_out = {self.nodes[partition]: (partition, why) for partition, why in sorted(reasons.items())}
        for node, (partition, why) in newly_left_out.items():
            _warn(partition, node, why, self.identities[partition])
        identities = {p: identity for p, identity in self.identities.items() if p not in reasons}
        nodes = {p: node for p, node in self.nodes.items() if p not in reasons}
        agreement = replace(
            self._agreement, identities=identities, nodes=nodes, left_out=self._agreement.left_out | newly_left_out
        )
        refuse_few_left(agreement, self.settings)
        self._take(agreement)

    def leave_out_new(self, started: Sequence[Mapping[str, Any]]) -> None:
        """Leave out who took no part when the run was started.

        Args:
            started: the roster that the run's folder has.

        Raises:
            RosterError: too few are left.
        """
        partitions = {client["partition"] for client in started}
        new = sorted(self.identities.keys() - partitions)
        self.leave_out(dict.fromkeys(new, "it took no part when the run was started."))

    @property
    def is_open(self) -> bool:
        """Whether clients may come and go while the run goes on."""
        return self.settings.takes_newcomers

    def members(self) -> dict[int, Identity]:
        """Partition -> identity of those who take part now."""
        return {partition: identity for partition, identity in self.identities.items() if partition in self.nodes}

    def misfit(self, newcomer: Identity) -> str:
        """Why a client that comes later does not fit in with the members; "" where it does."""
        earlier = self.identities.get(newcomer.partition)
        if newcomer.problem:
            problem = newcomer.problem.removeprefix(f"client {newcomer.partition}: ")
            return f"it says: {quoted(problem, LONGEST_PROBLEM)}"
        if earlier is not None and earlier != newcomer:
            return "it is another client than the one of its partition before; start a new run with it."
        if earlier is None and newcomer.partition in self._earlier_entries:
            try:
                refuse_changes([self._earlier_entries[newcomer.partition]], [_as_entry(newcomer)])
            except RosterError as error:
                return str(error)
        # where all have left, whoever comes has to fit in with those who were there; all agree, so a few speak for them
        members = (partition for partition in self.nodes or self.identities if partition != newcomer.partition)
        some = {partition: self.identities[partition] for partition in islice(members, SPOKESMEN)}
        return misfit(some, newcomer, self.settings, self.terms)

    def was_member(self, partition: int) -> bool:
        """Whether it has taken part before, perhaps before the run was cut."""
        return partition in self.identities or partition in self._earlier_entries

    def set_aside(self, partition: int) -> None:
        """Whoever has answered for a partition is no member yet."""
        self.absent[partition] = self.nodes.pop(partition), self.identities.pop(partition)

    def join(self, partitions: Iterable[int], server_round: int) -> None:
        """Some who are absent become members at the start of a round."""
        for partition in partitions:
            node, identity = self.absent.pop(partition)
            joined = server_round
            if partition in self._earlier_entries:
                joined = self._earlier_entries[partition].get("joined", 0)
            if partition not in self.identities and joined:
                self.joined[partition] = joined
            self.left.pop(partition, None)
            self.identities[partition], self.nodes[partition] = identity, node
        self._name_clients()

    def leave(self, partition: int, server_round: int) -> None:
        """A member leaves at the start of a round. It may come back."""
        node = self.nodes.pop(partition)
        self.left[partition] = server_round
        self.absent[partition] = node, self.identities[partition]

    def forget(self, partition: int, server_round: int) -> None:
        """A member whose node has gone for good leaves; one that answers for it later comes back."""
        node = self.nodes.pop(partition)
        self.left[partition] = server_round
        self._times_to_ask.pop(node, None)

    def expect(self, entries: Sequence[dict[str, Any]], last_round: int) -> None:
        """Who took part when a run was cut that is resumed: of these as many have to be there as a start needs.

        Args:
            entries: of the run's folder, as `as_json` gave them.
        """
        self._earlier_entries = {entry["partition"]: entry for entry in entries if entry.get("joined", 0) <= last_round}
        self._last_round = last_round

    def resume(self) -> None:
        """Members are those who were when the run was cut; whoever else has answered may come in its next round."""
        earlier, last_round = self._earlier_entries, self._last_round
        for partition in sorted(self.identities):
            if partition not in earlier:
                self.set_aside(partition)
                continue
            if joined := earlier[partition].get("joined", 0):
                self.joined[partition] = joined
            if 0 < earlier[partition].get("left", 0) <= last_round:
                self.leave(partition, earlier[partition]["left"])
        # whoever came later is met later
        order = sorted(self.identities, key=lambda partition: (self.joined.get(partition, 0), partition))
        self.identities = {partition: self.identities[partition] for partition in order}

    def refuse_changes(self, entries: Sequence[dict[str, Any]]) -> None:
        """Stop a resumed run whose clients are not those it was started with.

        Args:
            entries: of the run's folder, as `as_json` gave them.

        Raises:
            RosterError: of `refuse_changes`.
        """
        old, new = list(entries), self.as_json()
        if self.is_open:
            # who has not come back yet is compared when it does
            old = [entry for entry in old if entry["partition"] in self.identities]
            new = [entry for entry in new if entry["partition"] in self.identities]
        refuse_changes(old, new, self.left_out)

    def selected(self, server_round: int) -> list[int]:
        """Who trains in a round: some of the members that have training samples."""
        candidates = [partition for partition, identity in sorted(self.members().items()) if identity.trains]
        return select_clients(self.settings, candidates, server_round)

    def refresh(self, grid: Grid, server_round: int) -> None:
        """Before a round: let nodes that appeared since take over their partitions. Each gets `query-timeout`."""
        self._ask(grid)
        self.listed_nodes = frozenset(self._list_nodes(grid))
        while True:
            arrived = self._pull_answers(grid)
            for node, identity in arrived:
                if self.is_open and identity.partition not in self.nodes:
                    self.absent[identity.partition] = node, identity
                    continue
                old_identity = self.identities.get(identity.partition)
                if identity != old_identity:
                    difference = "was another client at the start" if old_identity else "is none of this run's"
                    if not old_identity and any(
                        identity.partition == out for out, _ in self._agreement.left_out.values()
                    ):
                        difference = "was left out when the run began, and can take part in the next one"
                    problem = f"partition {identity.partition} {difference}"
                    if identity.problem:
                        problem = f"it says: {quoted(identity.problem, LONGEST_PROBLEM)}"
                    log.warning("node %d is left out: %s", node, problem)
                    continue
                self.identities[identity.partition], self.nodes[identity.partition] = identity, node
                self._name_clients()
                log.info("partition %d is back as node %d", identity.partition, node)
            if not self._is_waiting():
                return
            _pause(arrived)

    @property
    def number(self) -> int:
        """How many clients the run has, those who are left out among them."""
        return self._agreement.number

    @property
    def left_out(self) -> str:
        """Who is left out and why, in sentences."""
        return all_left_out(self._agreement.left_out)

    def class_word(self, label: int) -> str:
        """A class by its name, for people."""
        identity = next(iter(self.identities.values()), None)
        return class_word(label, identity.class_names if identity else ())

    def as_json(self) -> list[dict[str, Any]]:
        """The roster for the run's folder, without node ids: those differ from run to run."""
        entries = dict(self._earlier_entries)
        for partition, identity in self.identities.items():
            known_identity, entry = self._entries.get(partition, (None, {}))
            if identity is not known_identity:
                entry = _as_entry(identity)
                self._entries[partition] = identity, entry
            entries[partition] = dict(entry)
            if partition in self.joined:
                entries[partition]["joined"] = self.joined[partition]
            if partition in self.left:
                entries[partition]["left"] = self.left[partition]
        names = client_names(entries.values())
        return [entry | {"name": names.get(partition, "")} for partition, entry in sorted(entries.items())]

    def _note_answer(self, grid: Grid, node: int, identity: Identity) -> None:
        """Note who a node says it is. Of a partition's nodes those that have left since are forgotten."""
        nodes = self._nodes_by_partition.setdefault(identity.partition, [])
        listed_nodes = set(grid.get_node_ids()) if nodes else set()
        for old_node in [other for other in nodes if other not in listed_nodes or other == node]:
            nodes.remove(old_node)
            self._count(self._identities_by_node.pop(old_node), -1)
        nodes.append(node)
        self._identities_by_node[node] = identity
        self._last_answer_time = time.monotonic()
        self._count(identity, 1)
        if identity.problem:
            why = identity.problem.removeprefix(f"client {identity.partition}: ")
            _warn(identity.partition, node, f"it says: {quoted(why, LONGEST_PROBLEM)}", identity)

    def _count(self, identity: Identity, votes: int) -> None:
        # who cannot take part does not know how many there are
        if not identity.problem:
            self._votes[identity.partitions] += votes

    def _count_expected(self) -> int:
        """How many clients the run has, as far as it is known: 0 while nobody says it, or two sides are equally
        large."""
        if self.settings.clients:
            return self.settings.clients
        first, second = (*self._votes.most_common(2), (0, 0), (0, 0))[:2]
        return first[0] if first[1] > second[1] else 0

    def _is_complete(self, grid: Grid) -> bool:
        """Whether nobody else is to come: somebody answered for each partition, or in a simulation, whose nodes are all
        there from the start, as many nodes as there are clients."""
        expected = self._count_expected()
        if self.settings.min_clients and not is_simulated(grid):
            return len(self._list_usable()) >= self._count_needed()
        if (
            expected
            and len(self._nodes_by_partition) >= expected
            and all(partition in self._nodes_by_partition for partition in range(expected))
        ):
            # who says that it is the only one would make the run its own, were it the first to come
            is_only_client = expected == 1 and not self.settings.clients and not is_simulated(grid)
            return not is_only_client or time.monotonic() - self._last_answer_time >= self.settings.query_timeout
        answered = len(self._identities_by_node) + len(self._problems_by_node)
        if self._pending_messages or not answered or answered < expected or not is_simulated(grid):
            return False
        return {*grid.get_node_ids()} <= self._identities_by_node.keys() | self._problems_by_node.keys()

    def _refuse_missing(self) -> None:
        """At the deadline: fewer nodes have answered than the run has clients."""
        expected = self._count_needed() or self._count_expected()
        answered = len(self._identities_by_node) + len(self._problems_by_node)
        due = self._list_due()
        there = {*self._nodes_by_partition}
        if self._earlier_entries:
            # of other clients there may be as many as there will
            due, there = self._expected(), self._list_usable()
            answered = len(there)
        # where the number itself is in dispute, that is what is wrong
        if answered >= expected > 0 or (self._identities_by_node and not expected):
            return
        missing = list(islice((partition for partition in due if partition not in there), 20))
        number = sum(partition in due for partition in there)
        problems = [
            f" Client {identity.partition} (node {node}) says: {quoted(identity.problem, LONGEST_PROBLEM)}"
            for node, identity in self._identities_by_node.items()
            if identity.problem
        ]
        raise RosterError(
            f"{number} of {expected or 'an unknown number of'} clients answered within "
            f"`start-timeout` {self.settings.start_timeout:g} s (missing partitions: "
            f"{', '.join(map(str, missing)) or 'unknown'}); start the missing SuperNodes or raise the timeout."
            + "".join(problems[:20])
        )

    def _list_due(self) -> Collection[int]:
        """The partitions for which somebody has to answer at the start."""
        # a client may say that there are two thousand million
        return range(self._count_needed() or self._count_expected())

    def _list_usable(self) -> set[int]:
        """The partitions for which somebody has answered that can take part."""
        usable = {identity.partition for identity in self._identities_by_node.values() if not identity.problem}
        return usable & self._expected() if self._earlier_entries else usable

    def _expected(self) -> set[int]:
        """Of a run that is resumed: who took part when it was cut."""
        return {
            partition
            for partition, entry in self._earlier_entries.items()
            if not 0 < entry.get("left", 0) <= self._last_round
        }

    def _count_needed(self) -> int:
        """How many have to be there for a start by `min-clients`."""
        needed = self.settings.min_clients
        return min(needed, len(self._expected())) if self._earlier_entries else needed

    def _enough_fit(self) -> bool:
        """Of a run that starts when `min-clients` fit: whether they do."""
        if not self.settings.min_clients:
            return True
        try:
            agreement = agree(self._identities_by_node.items(), self.settings, self.terms, enough=False)
        except RosterError:
            return False
        fitting = {*agreement.identities}
        return len(fitting & self._expected() if self._earlier_entries else fitting) >= self._count_needed()

    def _take(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self.identities, self.nodes = dict(sorted(agreement.identities.items())), dict(agreement.nodes)
        self._name_clients()

    def _name_clients(self) -> None:
        """Let all that is said of the run call clients as they call themselves now."""
        use_client_names(client_names(map(vars, self.identities.values())))

    def _list_nodes(self, grid: Grid) -> list[int]:
        """The nodes that may be asked who they are."""
        return list(grid.get_node_ids())

    def _ask(self, grid: Grid) -> None:
        """Query the nodes that were never asked, or have answered with an error: one that is killed and started again
        under the same key keeps its id."""
        now = time.monotonic()
        new = sorted(node for node in self._list_nodes(grid) if self._times_to_ask.get(node, now) <= now)
        if not new:
            return
        messages = [Message(self.question, node, MessageType.QUERY) for node in new]
        deadline = math.inf if in_turn(grid) else now + self.settings.query_timeout
        for message_id, node in zip(grid.push_messages(messages), new, strict=False):
            # in place of an id Flower gives None for a node that has left, and no id at all when it takes nothing
            if message_id:
                self._times_to_ask[node] = math.inf
                self._pending_messages[message_id] = node, deadline

    def _pull_answers(self, grid: Grid) -> list[tuple[int, Identity]]:
        """The answers that have arrived.

        Raises:
            RosterError: a worker of Ray's has another home than the run.
        """
        answers = []
        for message_id, reply in pulled(grid, self._pending_messages) if self._pending_messages else ():
            if message_id not in self._pending_messages:
                continue
            node, _ = self._pending_messages.pop(message_id)
            if isinstance(reply, str):
                log.warning("node %d could not say who it is: %s", node, reply)
                self._times_to_ask[node] = time.monotonic() + RETRY
                continue
            if reply.has_error():
                if reply.error.code == OTHER_HOME and is_simulated(grid):
                    raise RosterError(remedy(f"node {node} says: {quoted(reply.error.reason or '', LONGEST_PROBLEM)}"))
                # in simulation the reason is a whole traceback; its last line is the error
                lines = (reply.error.reason or "").strip().splitlines() or ["unknown error"]
                why = UNSIGNED if reply.error.code == NOT_VERIFIED else ""
                last_line = quoted(lines[-1], LONGEST_PROBLEM)
                log.warning("node %d could not say who it is, an error came back: %s.%s", node, last_line, why)
                self._times_to_ask[node] = time.monotonic() + RETRY
                continue
            try:
                answers.append((node, decode_identity(reply.content)))
            except MessageError as error:
                self._problems_by_node[node] = f"its answer cannot be read: {quoted(str(error), LONGEST_PROBLEM)}"
                log.warning("node %d could not say who it is: %s", node, self._problems_by_node[node])
        return answers

    def _is_waiting(self) -> bool:
        """Whether an answer may still come in time. A node that stays silent (a dead one is listed for a while)
        holds nothing up for longer than `query-timeout`."""
        now = time.monotonic()
        # in the order in which they were asked, which is that of their deadlines
        for node, deadline in self._pending_messages.values():
            if now <= deadline:
                return True
            if node not in self._silent_nodes:
                self._silent_nodes.add(node)
                log.warning("node %d did not say who it is within `query-timeout`", node)
        return False


def _as_entry(identity: Identity) -> dict[str, Any]:
    client = asdict(identity)
    # of layouts a digest: they run to thousands of lines
    return client | {"layouts": _digest(client["layouts"])}


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else ""


def _warn(partition: int, node: int, why: str, identity: Identity) -> None:
    name = client_names([vars(identity)]).get(partition)
    log.warning("warning: client %d (%snode %d) is left out: %s", partition, f"{name}, " if name else "", node, why)


def _pause(arrived: Sequence[object]) -> None:
    """Before the next look, unless something came: a grid in this process gives one answer a look, and ten thousand
    pauses are eight minutes."""
    if not arrived:
        time.sleep(POLL)


def refuse_too_few(settings: Settings, identities: Mapping[int, Identity], sample_size: int) -> None:
    """Stop before round 1 where a round could never close as the settings want it.

    Args:
        sample_size: how many clients train in a round.

    Raises:
        RosterError: names the numbers and the remedy.
    """
    needed = max(1, settings.min_replies)
    if sample_size >= needed:
        return
    candidates = sum(identity.trains for identity in identities.values())
    raise RosterError(
        f"{candidates} clients have training samples and {sample_size} of them train in a round, but a round needs "
        f"{needed}, by `min-replies` {settings.min_replies}; lower that, or raise `fraction-train`."
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
    for old_client, new_client in zip(old, json.loads(json.dumps(new)), strict=True):
        for name, value in new_client.items():
            # what it discloses follows from the settings, and is told in more words by every version; another name
            # makes no other client
            if name in ("discloses", "joined", "left", "name"):
                continue
            # what clients had no word for when the run was begun is empty
            if old_client.get(name, type(value)()) != value:
                raise RosterError(
                    f"{client_word(new_client['partition'])} is not the one that the run was started with: its {name} "
                    f"was {_cut(old_client.get(name))} and is now {_cut(value)}; give it back its data, its model and "
                    "its version of Protosphere, or start a new run."
                )


def _cut(value: Any) -> str:
    return one_line(shown(value), LONGEST_PROBLEM)
