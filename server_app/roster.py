"""The clients of a run, from its start (`gathering.py`) to its end: members join, leave and return."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid

from protosphere.core.client_names import client_names, client_word, use_client_names
from protosphere.core.seeds import generator
from protosphere.core.settings import Settings, shown
from protosphere.core.text import class_word, one_line, quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    Agreement,
    RosterError,
    Terms,
    all_left_out,
    misfit,
    refuse_too_few,
)
from protosphere.server_app.gathering import Gathering, warn_left_out
from protosphere.server_app.queries import Queries, pause
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")


def select_clients(settings: Settings, candidates: Sequence[int], server_round: int) -> list[int]:
    """The partitions that train in this round: round(rho M) of the M candidates, at least one.

    They are drawn from the stream (seed, round, "sample"), independently of node ids and earlier rounds.

    Args:
        candidates: the clients with training samples, in ascending order.
    """
    count = settings.count_sampled(len(candidates))
    order = torch.randperm(len(candidates), generator=generator(settings.seed, "round", server_round, "sample"))
    return sorted(candidates[index] for index in order[:count].tolist())


class Roster:
    """Clients by partition id. Flower's node ids are random and, for nodes without a key, change at a restart. They are
    therefore addresses only: a node represents the partition that it answers for, as long as Flower lists the node.

    Attributes:
        identities: partition -> the client's identity. Clients that have left stay in it, because their uploads still
            count.
        nodes: partition -> node id, for members only; nobody else gets messages.
        absent: partition -> node and identity of clients that have answered and are not members.
        joined, left: partition -> the round at whose start a client joined or left; clients that were there from the
            start, or that stay, have no entry.
        listed_nodes: the nodes that Flower listed at the last refresh.
        queries: asks nodes for their identities.
        asked: partition -> node of the clients to ask; None to ask all.

    Args:
        terms: what the server knows about the run besides its settings; without them, messages are not compared.
        question: the content of the query to nodes.
    """

    def __init__(self, settings: Settings, terms: Terms | None = None, question: RecordDict | None = None):
        self.settings = settings
        self.terms = terms
        self.identities: dict[int, Identity] = {}
        self.nodes: dict[int, int] = {}
        self.absent: dict[int, tuple[int, Identity]] = {}
        self.joined: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.listed_nodes: frozenset[int] = frozenset()
        self.queries = Queries(question)
        # for a resumed run: partition -> entry in its folder, for the clients before the interruption
        self._earlier_entries: dict[int, dict[str, Any]] = {}
        self._last_round = 0  # the last one before the interruption
        self._agreement = Agreement(0, {}, {}, {})
        self._partition_of_node: dict[int, int] = {}  # partition of every node that represents, or has represented, one
        self._waiting_nodes: set[int] = set()  # nodes that answered for a partition whose node is still there
        self._name_clients()

    def gather(self, grid: Grid) -> None:
        """Gather the clients that answer and fit (`protosphere.server_app.gathering`).

        Raises:
            RosterError: too few by `start-timeout`, or too few that fit together.
        """
        earlier = self._present_before_cut() if self._earlier_entries else None
        agreement = Gathering(self.settings, self.terms, self.queries, earlier).run(grid)
        self._take(agreement)

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Continue without some clients, for reasons that were not known when they were gathered.

        Args:
            reasons: partition -> what is wrong with the client, and the remedy.

        Raises:
            RosterError: too few are left.
        """
        newly_left_out = {self.nodes[partition]: (partition, why) for partition, why in sorted(reasons.items())}
        for node, (partition, why) in newly_left_out.items():
            warn_left_out(partition, node, why, self.identities[partition])
        identities = {p: identity for p, identity in self.identities.items() if p not in reasons}
        nodes = {p: node for p, node in self.nodes.items() if p not in reasons}
        agreement = replace(
            self._agreement, identities=identities, nodes=nodes, left_out=self._agreement.left_out | newly_left_out
        )
        refuse_too_few(agreement, self.settings)
        self._take(agreement)

    def leave_out_new(self, started: Sequence[Mapping[str, Any]]) -> None:
        """Leave out clients that took no part when the run was started.

        Args:
            started: the roster in the run's folder.

        Raises:
            RosterError: too few are left.
        """
        partitions = {client["partition"] for client in started}
        new = sorted(self.identities.keys() - partitions)
        self.leave_out(dict.fromkeys(new, "it took no part when the run was started."))

    @property
    def num_classes(self) -> int:
        """K; all clients have the same list of classes."""
        return len(next(iter(self.identities.values())).class_names)

    @property
    def is_open(self) -> bool:
        """Whether clients may join and leave during the run."""
        return self.settings.takes_newcomers

    def members(self) -> dict[int, Identity]:
        """Partition -> identity of the current members."""
        return {partition: identity for partition, identity in self.identities.items() if partition in self.nodes}

    def misfit(self, newcomer: Identity) -> str:
        """Why a client that arrives later does not fit in with the members, or is not the earlier client of its
        partition; "" if it fits."""
        partition = newcomer.partition
        # if all members have left, a new client must fit in with them all the same; one represents them, as all agree
        candidates = (self.identities[other] for other in self.nodes or self.identities if other != partition)
        if reason := misfit(newcomer, next(candidates, None), self.settings, self.terms):
            return reason
        earlier = self._earlier_entries.get(partition)
        if partition in self.identities:
            earlier = _as_entry(self.identities[partition])
        return describe_change(earlier, _as_entry(newcomer)) if earlier else ""

    def was_member(self, partition: int) -> bool:
        """Whether it has taken part before, perhaps before an interruption."""
        return partition in self.identities or partition in self._earlier_entries

    def join(self, partitions: Iterable[int], server_round: int) -> None:
        """Make absent clients members at the start of a round."""
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

    def forget(self, partition: int, server_round: int) -> None:
        """Remove a member whose node has left; a node that answers for it later brings it back."""
        node = self.nodes.pop(partition)
        self.left[partition] = server_round
        self.queries.forget(node)

    def expect(self, entries: Sequence[dict[str, Any]], last_round: int) -> None:
        """Set the clients that took part before a resumed run was interrupted: as many of these must be present as a
        start needs.

        Args:
            entries: the roster in the run's folder, from `as_json`.
        """
        self._earlier_entries = {entry["partition"]: entry for entry in entries if entry.get("joined", 0) <= last_round}
        self._last_round = last_round

    def _present_before_cut(self) -> set[int]:
        """The clients that took part before a resumed run was interrupted."""
        return {
            partition
            for partition, entry in self._earlier_entries.items()
            if not 0 < entry.get("left", 0) <= self._last_round
        }

    def resume(self) -> None:
        """Restore the members from before the interruption; other clients that have answered may join in the next
        round."""
        earlier, last_round = self._earlier_entries, self._last_round
        for partition in sorted(self.identities):
            entry = earlier.get(partition)
            if entry is None:
                self.absent[partition] = self.nodes.pop(partition), self.identities.pop(partition)
                continue
            if joined := entry.get("joined", 0):
                self.joined[partition] = joined
            if 0 < entry.get("left", 0) <= last_round:
                self.left[partition] = entry["left"]
                self.absent[partition] = self.nodes.pop(partition), self.identities[partition]
        # clients that joined later are met later
        order = sorted(self.identities, key=lambda partition: (self.joined.get(partition, 0), partition))
        self.identities = {partition: self.identities[partition] for partition in order}

    def refuse_changes(self, entries: Sequence[dict[str, Any]]) -> None:
        """Stop a resumed run whose clients are not those it was started with.

        Args:
            entries: the roster in the run's folder, from `as_json`.

        Raises:
            RosterError: of `refuse_changes`.
        """
        old, new = list(entries), self.as_json()
        if self.is_open:
            # a client that has not returned yet is compared on its return
            old = [entry for entry in old if entry["partition"] in self.identities]
            new = [entry for entry in new if entry["partition"] in self.identities]
        refuse_changes(old, new, self.left_out)

    def selected(self, server_round: int) -> list[int]:
        """The partitions that train in a round, drawn from the members with training samples."""
        candidates = [partition for partition, identity in sorted(self.members().items()) if identity.trains]
        return select_clients(self.settings, candidates, server_round)

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
        if self.is_open and partition not in self.nodes:
            self.absent[partition] = node, identity
            self._partition_of_node[node] = partition
            return
        if identity != self.identities.get(partition):
            log.warning("node %d is left out: %s", node, self._describe_stranger(identity))
            return
        current_node = self.nodes[partition]
        if current_node != node and current_node in self.listed_nodes:
            # it is asked again, and takes over when Flower no longer lists the other node
            self.queries.forget(node)
            if node not in self._waiting_nodes:
                log.warning(
                    "node %d waits: node %d answers for partition %d, and Flower still lists it",
                    node,
                    current_node,
                    partition,
                )
            self._waiting_nodes.add(node)
            return
        # its name may have changed
        self.identities[partition], self.nodes[partition] = identity, node
        self._partition_of_node[node] = partition
        self._name_clients()
        log.info("partition %d is back as node %d", partition, node)

    def _describe_stranger(self, identity: Identity) -> str:
        """Why a node cannot represent its partition during the run."""
        partition = identity.partition
        if identity.problem:
            return f"it says: {quoted(identity.problem, LONGEST_PROBLEM)}"
        if partition in self.identities:
            return f"partition {partition} was another client at the start"
        if any(partition == left_out for left_out, _ in self._agreement.left_out.values()):
            return f"partition {partition} was left out when the run began, and can take part in the next one"
        return f"partition {partition} is none of this run's"

    @property
    def number(self) -> int:
        """The number of clients in the run, including those that are left out."""
        return self._agreement.number

    @property
    def left_out(self) -> str:
        """One sentence per client that is left out, with the reason."""
        return all_left_out(self._agreement.left_out)

    def class_word(self, label: int) -> str:
        """A class's name."""
        identity = next(iter(self.identities.values()), None)
        return class_word(label, identity.class_names if identity else ())

    def as_json(self) -> list[dict[str, Any]]:
        """The roster for the run's folder, without node ids, which differ from run to run."""
        entries = dict(self._earlier_entries)
        for partition, identity in self.identities.items():
            entries[partition] = _as_entry(identity)
            if partition in self.joined:
                entries[partition]["joined"] = self.joined[partition]
            if partition in self.left:
                entries[partition]["left"] = self.left[partition]
        names = client_names(entries.values())
        return [entry | {"name": names.get(partition, "")} for partition, entry in sorted(entries.items())]

    def _take(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self.identities, self.nodes = dict(sorted(agreement.identities.items())), dict(agreement.nodes)
        self._partition_of_node = {node: partition for partition, node in self.nodes.items()}
        self._name_clients()

    def _name_clients(self) -> None:
        """Use the clients' current names in everything that is printed."""
        use_client_names(client_names(map(vars, self.identities.values())))


def _as_entry(identity: Identity) -> dict[str, Any]:
    client = asdict(identity)
    # machines and versions may change between two runs of the same clients
    del client["flower"]
    # layouts have thousands of lines, so only their digest is stored
    return client | {"layouts": _digest(client["layouts"])}


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else ""


def refuse_changes(old: list[dict[str, Any]], new: list[dict[str, Any]], left_out: str = "") -> None:
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
    for name, value in json.loads(json.dumps(new)).items():
        # disclosures follow from the settings, and their wording changes between versions; a new name is no new client
        if name in ("discloses", "joined", "left", "name"):
            continue
        # fields that an earlier version did not have are empty
        earlier = json.loads(json.dumps(old.get(name, type(value)())))
        if earlier != value:
            return (
                f"it is not the one that the run was started with: its {name} was {_cut(earlier)} and is now "
                f"{_cut(value)}; give it back its data, its model and its version of Protosphere, or start a new run."
            )
    return ""


def _cut(value: Any) -> str:
    return one_line(shown(value), LONGEST_PROBLEM)
