"""Who takes part: before training every client says who it is; a run stops here when they do not fit."""

import json
import logging
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from federation.messages import MessageError, decode_identity
from federation.payloads import Identity
from federation.settings import Settings

log = logging.getLogger("protosphere")


class RosterError(ValueError):
    """The clients do not fit together; names the client and the remedy."""


class Roster:
    """Clients by partition id. Flower's node ids are random and change when a node restarts, so they are
    only addresses: the newest node that answered for a partition stands for it.

    Attributes:
        identities: partition -> who it said it is.
        nodes: partition -> node id to send to.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.identities: dict[int, Identity] = {}
        self.nodes: dict[int, int] = {}
        self._asked: set[int] = set()
        self._partition_of: dict[int, int] = {}

    def gather(self, grid: Grid) -> None:
        """Wait for exactly as many clients as the run has, then check that they fit.

        Raises:
            RosterError: too few by `start-timeout`, two live answers for one partition, or clients that do not
                fit together.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        pending: dict[str, tuple[int, float]] = {}
        expected = self.settings.clients
        while True:
            pending |= self._ask(grid)
            for node, identity in self._answers(grid, pending):
                if identity.problem:
                    raise RosterError(identity.problem)
                if identity.partition in self.nodes:
                    raise RosterError(
                        f"nodes {self.nodes[identity.partition]} and {node} both answer for partition "
                        f"{identity.partition}; give every SuperNode a partition-id of its own."
                    )
                self._enter(node, identity)
                expected = expected or identity.partitions
            if expected and len(self.identities) >= expected and not pending:
                break
            if time.monotonic() > deadline:
                missing = sorted(set(range(expected)) - self.identities.keys())
                raise RosterError(
                    f"{len(self.identities)} of {expected or 'an unknown number of'} clients answered within "
                    f"`start-timeout` {self.settings.start_timeout:g} s (missing partitions: "
                    f"{missing[:20] or 'unknown'}); start the missing SuperNodes or raise the timeout."
                )
            time.sleep(0.05)
        check(self.identities, expected)

    def refresh(self, grid: Grid) -> None:
        """Before a round: let nodes that appeared since take over their partitions."""
        pending = self._ask(grid)
        deadline = time.monotonic() + self.settings.query_timeout
        while pending and time.monotonic() < deadline:
            for node, identity in self._answers(grid, pending):
                known = self.identities.get(identity.partition)
                if known is None or identity.problem or not _same_client(identity, known):
                    log.warning(
                        "node %d is left out: %s",
                        node,
                        identity.problem or f"partition {identity.partition} was another client at the start",
                    )
                    continue
                self._enter(node, identity)
                log.info("partition %d is back as node %d", identity.partition, node)
            if pending:
                time.sleep(0.05)

    def partition_of(self, node: int) -> int | None:
        """The partition that a node answered for."""
        return self._partition_of.get(node)

    def as_json(self) -> list[dict[str, Any]]:
        """The roster for the run's folder, without node ids: those differ from run to run."""
        return [asdict(identity) for _, identity in sorted(self.identities.items())]

    def _enter(self, node: int, identity: Identity) -> None:
        self.identities[identity.partition] = identity
        self.nodes[identity.partition] = node
        self._partition_of[node] = identity.partition

    def _ask(self, grid: Grid) -> dict[str, tuple[int, float]]:
        """Query the nodes that were never asked; message id -> (node, deadline)."""
        new = sorted(set(grid.get_node_ids()) - self._asked)
        if not new:
            return {}
        self._asked |= set(new)
        messages = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
        deadline = time.monotonic() + self.settings.query_timeout
        return {
            message_id: (node, deadline) for message_id, node in zip(grid.push_messages(messages), new, strict=True)
        }

    def _answers(self, grid: Grid, pending: dict[str, tuple[int, float]]) -> list[tuple[int, Identity]]:
        """Take arrived answers out of `pending`, and give up on nodes past their deadline (dead ids)."""
        answers = []
        for reply in grid.pull_messages(list(pending)) if pending else ():
            node, _ = pending.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                log.warning("node %d could not say who it is: %s", node, reply.error.reason)
                continue
            try:
                answers.append((node, decode_identity(reply.content)))
            except MessageError as error:
                log.warning("node %d could not say who it is: %s", node, error)
        for message_id in [m for m, (_, deadline) in pending.items() if time.monotonic() > deadline]:
            node, _ = pending.pop(message_id)
            log.warning("node %d did not say who it is within `query-timeout`", node)
        return answers


def check(identities: dict[int, Identity], expected: int) -> None:
    """Stop before round 1 unless the clients fit together.

    Raises:
        RosterError: names the client, what differs and the remedy.
    """
    if not any(identity.rows[0] for identity in identities.values()):
        raise RosterError("no client has a single training row; check `dataset`, `partition` and the shares.")
    for partition, identity in sorted(identities.items()):
        if not 0 <= partition < expected or identity.partitions != expected:
            raise RosterError(
                f"client {partition} says it is one of {identity.partitions}, but the run has {expected} "
                "clients; set `clients` and every node's num-partitions to the same number."
            )
    dims = Counter(identity.feature_dim for identity in identities.values())
    names = Counter(identity.class_names for identity in identities.values())
    usual_dim, usual_names = dims.most_common(1)[0][0], names.most_common(1)[0][0]
    for partition, identity in sorted(identities.items()):
        if identity.feature_dim != usual_dim:
            raise RosterError(
                f"client {partition} ({identity.model}) has features of width {identity.feature_dim}, the others "
                f"of {usual_dim}; prototypes can only be averaged at one width: set `feature-dim` alike."
            )
        if identity.class_names != usual_names:
            raise RosterError(
                f"client {partition} has another class list than the others ({_difference(identity, usual_names)}); "
                "give every client the same classes.txt, in the same order."
            )


def refuse_changes(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Stop a resumed run whose clients are not those it was started with, as `Roster.as_json` tells them.

    Raises:
        RosterError: names the first client that differs, in what, and the remedy.
    """
    if len(old) != len(new):
        raise RosterError(f"the run had {len(old)} clients and now has {len(new)}; resume it with the same ones.")
    for before, now in zip(old, json.loads(json.dumps(new)), strict=True):
        for name, value in now.items():
            if before.get(name) != value:
                raise RosterError(
                    f"client {now['partition']} is not the one that the run was started with: its {name} was "
                    f"{json.dumps(before.get(name))} and is now {json.dumps(value)}; give it back its data and model, "
                    "or start a new run."
                )


def _difference(identity: Identity, usual: tuple[str, ...]) -> str:
    own = identity.class_names
    if len(own) != len(usual):
        return f"{len(own)} classes where they have {len(usual)}"
    index = next(i for i, pair in enumerate(zip(own, usual, strict=True)) if pair[0] != pair[1])
    return f"class {index} is {own[index]!r} where they have {usual[index]!r}"


def _same_client(new: Identity, known: Identity) -> bool:
    return (new.model, new.feature_dim, new.class_names, new.rows) == (
        known.model,
        known.feature_dim,
        known.class_names,
        known.rows,
    )
