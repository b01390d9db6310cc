"""The clients of a run, from its start (`gathering.py`) to its end: members join, leave and return."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid

from protosphere.core.client_names import client_names, client_word, use_client_names
from protosphere.core.seeds import generator
from protosphere.core.settings import Settings, shown
from protosphere.core.text import one_line, quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    Agreement,
    RosterError,
    Terms,
    all_left_out,
    describe_difference,
    describe_misfit,
    refuse_too_few,
)
from protosphere.server_app.gathering import Gathering, Queries, pause, warn_left_out
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")
ROUNDS = ("joined", "left")  # keys of an entry of roster.json
# disclosures follow from the settings, and their wording changes between versions; a new name is no new client
CHANGEABLE = ("discloses", "name", *ROUNDS)


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
        """Gather the clients that answer and fit (`protosphere.server_app.gathering`).

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
        earlier = {p for p, member in self.members.items() if not member.left} if restores else None
        agreement = Gathering(self.settings, self.terms, self.queries, earlier).run(grid)
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
            joined, left = (entry.get(name, 0) for name in ROUNDS)
            if joined <= last_round:
                earlier = {name: value for name, value in entry.items() if name not in ROUNDS}
                left = left if left <= last_round else 0
                self.members[entry["partition"]] = Member(joined=joined, left=left, earlier=earlier)

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Continue without some clients, for reasons that were not known when they were gathered.

        Args:
            reasons: partition -> what is wrong with the client, and the remedy.

        Raises:
            RosterError: too few are left.
        """
        for partition, why in sorted(reasons.items()):
            member = self.members.pop(partition)
            assert member.identity is not None
            node = self.waiting.pop(partition)[0] if member.node is None else member.node
            self._left_out[node] = partition, why
            warn_left_out(partition, node, why, member.identity)
            if member.earlier:
                self.members[partition] = Member(joined=member.joined, left=member.left, earlier=member.earlier)
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


def as_entry(identity: Identity) -> dict[str, Any]:
    """A client as roster.json describes it."""
    entry = asdict(identity)
    # machines and versions may change between two runs of the same clients
    del entry["flower"]
    # layouts have thousands of lines, so only their digest is stored
    lines = "\n".join(entry["layouts"]).encode()
    return entry | {"layouts": hashlib.blake2b(lines, digest_size=8).hexdigest() if lines else ""}


def refuse_changes(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], left_out: str = "") -> None:
    """Stop a resumed run whose clients differ from those it was started with, as `Roster.as_json` describes them.

    Args:
        left_out: one sentence per client that does not fit in.

    Raises:
        RosterError: names the first client that differs, the difference and the remedy.
    """
    if len(old) != len(new):
        raise RosterError(
            f"the run had {len(old)} clients and now has {len(new)}; resume it with the same ones. {left_out}".rstrip()
        )
    for old_client, new_client in zip(old, new, strict=True):
        if reason := describe_change(old_client, new_client):
            raise RosterError(f"{client_word(new_client['partition'])}: {reason}")


def describe_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """How a client's roster entry differs from the earlier one, with the remedy; "" if it does not."""
    # as the file would have them
    old, new = json.loads(json.dumps([old, new]))
    for name, value in new.items():
        # fields that an earlier version did not have are empty
        earlier = old.get(name, type(value)())
        if name not in CHANGEABLE and earlier != value:
            before, now = (one_line(shown(content), LONGEST_PROBLEM) for content in (earlier, value))
            return (
                f"it is not the one that the run was started with: its {name} was {before} and is now {now}; give it "
                "back its data, its model and its version of Protosphere, or start a new run."
            )
    return ""
