"""Who takes part: before training every client says who it is; a run stops here when they do not fit."""

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from federation.homes import OTHER_HOME, remedy
from federation.settings import Settings, shown
from federation.wire.checks import plain
from federation.wire.codec import REMEDY, Codec, encoder_in
from federation.wire.messages import MessageError, decode_identity
from federation.wire.payloads import Identity
from federation.wire.replies import in_turn, is_simulated, pulled
from federation.wire.specs import Exchange
from federation.wire.weights import read_layouts
from federation.words import class_word

log = logging.getLogger("protosphere")

POLL = 0.05  # seconds between two looks at who is there
UNSIGNED = " Its SuperNode runs signed code alone (--trusted-entities), and this run's is not signed."
NOT_VERIFIED = 7  # Flower's code of a SuperNode that has refused the code which it was sent
RETRY = 5.0  # seconds until a node is asked again whose process died over the question


class RosterError(ValueError):
    """The clients do not fit together; names the client and the remedy."""


class Roster:
    """Clients by partition id. Flower's node ids are random and change when a node restarts, so they are
    only addresses: the newest node that answered for a partition stands for it.

    Attributes:
        identities: partition -> who it said it is.
        nodes: partition -> node id to send to.
        question: what goes with the query who a node is.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.identities: dict[int, Identity] = {}
        self.nodes: dict[int, int] = {}
        self.question = RecordDict()
        # node -> when it may be asked again
        self._asked: dict[int, float] = {}
        self._silent: set[int] = set()
        # message id -> (node, when to stop waiting for it); a late answer is still taken
        self._pending: dict[str, tuple[int, float]] = {}

    def gather(self, grid: Grid) -> None:
        """Wait for exactly as many clients as the run has, then check that they fit. Where clients answer in turn
        (`federation.wire.replies.in_turn`) who was asked in time is heard, however long the others take.

        Raises:
            RosterError: too few by `start-timeout`, two live answers for one partition, or clients that do not
                fit together.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        expected = self.settings.clients
        late = False
        while True:
            # else nodes that fail again and again would be heard for ever
            if not late:
                self._ask(grid)
            arrived = self._answers(grid)
            for node, identity in arrived:
                expected = expected or identity.partitions
                self._admit(grid, node, identity, expected)
            if expected and len(self.identities) >= expected and not self._waiting():
                break
            late = time.monotonic() > deadline
            if late and not (in_turn(grid) and self._waiting()):
                missing = list(islice((p for p in range(expected) if p not in self.identities), 20))
                raise RosterError(
                    f"{len(self.identities)} of {expected or 'an unknown number of'} clients answered within "
                    f"`start-timeout` {self.settings.start_timeout:g} s (missing partitions: "
                    f"{', '.join(map(str, missing)) or 'unknown'}); start the missing SuperNodes or raise the timeout."
                )
            _pause(arrived)
        check(self.identities, expected)

    def refresh(self, grid: Grid) -> None:
        """Before a round: let nodes that appeared since take over their partitions. Each gets `query-timeout`."""
        self._ask(grid)
        while True:
            arrived = self._answers(grid)
            for node, identity in arrived:
                known = self.identities.get(identity.partition)
                if identity != known:
                    difference = "is none of this run's" if known is None else "was another client at the start"
                    problem = identity.problem or f"partition {identity.partition} {difference}"
                    log.warning("node %d is left out: %s", node, problem)
                    continue
                self._enter(node, identity)
                log.info("partition %d is back as node %d", identity.partition, node)
            if not self._waiting():
                return
            _pause(arrived)

    def class_word(self, label: int) -> str:
        """A class by its name, for people."""
        identity = next(iter(self.identities.values()), None)
        return class_word(label, identity.class_names if identity else ())

    def as_json(self) -> list[dict[str, Any]]:
        """The roster for the run's folder, without node ids: those differ from run to run."""
        found = [asdict(identity) for _, identity in sorted(self.identities.items())]
        # of layouts a digest: they run to thousands of lines
        return [each | {"layouts": _digest(each["layouts"])} for each in found]

    def _admit(self, grid: Grid, node: int, identity: Identity, expected: int) -> None:
        """Take a client in at the start, or say why the run cannot begin with it."""
        if identity.problem:
            raise RosterError(identity.problem)
        _check_number(identity, expected)
        other = self.nodes.get(identity.partition)
        if other is not None and other in set(grid.get_node_ids()):
            raise RosterError(
                f"nodes {other} and {node} both answer for partition {identity.partition}; give every SuperNode a "
                "partition-id of its own."
            )
        self._enter(node, identity)

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
                    raise RosterError(remedy(plain(reply.error.reason or "")))
                # in simulation the reason is a whole traceback; its last line is the error
                lines = (reply.error.reason or "").strip().splitlines() or ["unknown error"]
                why = UNSIGNED if reply.error.code == NOT_VERIFIED else ""
                log.warning("node %d could not say who it is: %s%s", node, plain(lines[-1]), why)
                self._asked[node] = time.monotonic() + RETRY
                continue
            try:
                answers.append((node, decode_identity(reply.content)))
            except MessageError as error:
                log.warning("node %d could not say who it is: %s", node, error)
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


def _pause(arrived: Sequence[object]) -> None:
    """Before the next look, unless something came: a grid in this process gives one answer a look, and ten thousand
    pauses are eight minutes."""
    if not arrived:
        time.sleep(POLL)


def check(identities: dict[int, Identity], expected: int) -> None:
    """Stop before round 1 unless the clients fit together.

    Raises:
        RosterError: names the client, what differs and the remedy.
    """
    if not any(identity.trains for identity in identities.values()):
        raise RosterError("no client has a single training row; check `dataset`, `partition` and the shares.")
    for _, identity in sorted(identities.items()):
        _check_number(identity, expected)
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


def refuse_other_codecs(identities: Mapping[int, Identity], codec: Codec) -> None:
    """Stop before round 1 where a client would write its prototypes otherwise than the server reads them.

    Raises:
        RosterError: names the first such client, what differs and the remedy.
    """
    for partition, identity in sorted(identities.items()):
        if difference := codec.difference(identity.codec):
            raise RosterError(
                f"client {partition} writes its prototypes with another codec than the server ({difference}); {REMEDY}."
            )


def agreed_encoder(identities: Mapping[int, Identity], private: bool, encodes: bool) -> str:
    """The fingerprint of the public encoder that all clients have; "" where they have none.

    Args:
        private: whether the run is one under `privacy`. encodes: whether clients read rows through an encoder.

    Raises:
        RosterError: names the clients that have another than most, and the remedy; or one that tells its rows under
            `privacy`, or hides them without it: checks are made with what it tells.
    """
    for partition, identity in sorted(identities.items()):
        if identity.withheld != private:
            how = "tells its rows, but `privacy` is set" if private else "withholds its rows, but `privacy` is not set"
            raise RosterError(f"client {partition} {how}; give it the same version and settings.")
    if not encodes:
        return ""
    found = {partition: encoder_in(identity.codec) for partition, identity in sorted(identities.items())}
    usual = Counter(found.values()).most_common(1)[0][0]
    others = {partition: encoder for partition, encoder in found.items() if encoder != usual}
    if others:
        who = "clients " + ", ".join(map(str, others)) if len(others) > 1 else f"client {next(iter(others))}"
        prints = ", ".join(sorted(encoder or "none" for encoder in {*others.values()}))
        raise RosterError(
            f"{who} came with another encoder than the others (fingerprints {prints} and {usual or 'none'}): all must "
            "have the same weights."
        )
    return usual


def refuse_other_methods(identities: Mapping[int, Identity], method: str) -> None:
    """Stop before round 1 where a client's method came from another file than the server's.

    Args:
        method: digest of the server's file, "" of a method of ours.

    Raises:
        RosterError: names the first such client and the remedy.
    """
    for partition, identity in sorted(identities.items()):
        if identity.method != method:
            raise RosterError(
                f"client {partition} has another file for the setting `strategy` than the server (digest "
                f"{identity.method or 'none'} there, {method or 'none'} here); give every site the same file."
            )


def refuse_other_parts(identities: Mapping[int, Identity], exchange: Exchange, strategy: str) -> None:
    """Stop before round 1 where a client would share weights of other parts of its model than the method exchanges, or
    does not tell its class counts where that asks for them.

    Raises:
        RosterError: names the first such client, the parts and the remedy.
    """
    due = sorted({spec.name for spec in (*exchange.up, *exchange.down) if spec.kind == "weights"})
    for partition, identity in sorted(identities.items()):
        shared = sorted(read_layouts(identity.layouts))
        if shared != due:
            raise RosterError(
                f"client {partition} ({identity.model}) would share weights of {', '.join(shared) or 'no part'}, but "
                f"`{strategy}` exchanges those of {', '.join(due) or 'no part'}; give it a model that has them, and "
                "the same version."
            )
        if bool(identity.class_counts) != (exchange.told_counts and bool(identity.classes)):
            said = "tells no class counts" if exchange.told_counts else "tells its class counts"
            asked = "asks for them" if exchange.told_counts else "does not ask for them"
            raise RosterError(f"client {partition} {said}, but `{strategy}` {asked}; give it the same settings.")


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


def _check_number(identity: Identity, expected: int) -> None:
    if identity.partitions != expected:
        raise RosterError(
            f"client {identity.partition} says it is one of {identity.partitions}, but the run has {expected} "
            "clients; set `clients` and every node's num-partitions to the same number."
        )
    if not 0 <= identity.partition < expected:
        raise RosterError(
            f"a client says it is partition {identity.partition}, but the run's {expected} clients are 0 to "
            f"{expected - 1}; correct that node's partition-id."
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
            # what it discloses follows from the settings, and is told in more words by every version
            if name == "discloses":
                continue
            # what clients had no word for when the run was begun is empty
            if before.get(name, type(value)()) != value:
                raise RosterError(
                    f"client {now['partition']} is not the one that the run was started with: its {name} was "
                    f"{shown(before.get(name))} and is now {shown(value)}; give it back its data and model, or start "
                    "a new run."
                )


def _difference(identity: Identity, usual: tuple[str, ...]) -> str:
    own = identity.class_names
    sides = {
        "only it has": [name for name in own if name not in usual],
        "only they have": [name for name in usual if name not in own],
    }
    if any(sides.values()):
        return "; ".join(f"{side} {_some(names)}" for side, names in sides.items() if names)
    if len(own) != len(usual):
        return f"{len(own)} classes where they have {len(usual)}"
    index = next(i for i, pair in enumerate(zip(own, usual, strict=True)) if pair[0] != pair[1])
    return f"class {index} is {own[index]!r} where they have {usual[index]!r}"


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
