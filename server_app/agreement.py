"""Decides which clients take part in a run: those that fit the server's settings and agree with most of the others."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from typing import Any

from protosphere.core.client_names import client_word
from protosphere.core.settings import Settings, shown
from protosphere.core.text import LONGEST_NAME, one_line, quoted
from protosphere.wire.layouts import read_layouts
from protosphere.wire.parts import Exchange
from protosphere.wire.payloads import Identity

MOST_NAMED = 20  # partitions or clients named in one sentence
ROUNDS = ("joined", "left")  # keys of an entry of roster.json
# disclosures follow from the settings, and their wording changes between versions; a new name is no new client
CHANGEABLE = ("discloses", "name", *ROUNDS)
LONGEST_PROBLEM = 600  # characters of the reason why a client is excluded, with paths and the remedy


class RosterError(ValueError):
    """The clients do not fit together. The message names the client and the remedy."""


@dataclass(frozen=True)
class Terms:
    """What the server knows about a run, besides its shared settings.

    Attributes:
        exchange: the parts of the method's messages.
        private: whether `privacy` is on.
        encodes: whether clients read samples through an encoder.
        method: digest of the file of a user's method; "" for a built-in method.
        settings: digest of the server's settings that decide how messages are read.
    """

    exchange: Exchange
    private: bool = False
    encodes: bool = False
    method: str = ""
    settings: str = ""


@dataclass(frozen=True)
class Agreement:
    """Who takes part.

    Attributes:
        number: the number of clients in the run.
        identities, nodes: by partition: the client's identity, and its node.
        left_out: node -> (partition, reason for its exclusion).
    """

    number: int
    identities: dict[int, Identity]
    nodes: dict[int, int]
    left_out: dict[int, tuple[int, str]]


def agree(answers: Iterable[tuple[int, Identity]], settings: Settings, terms: Terms) -> Agreement:
    """Split the clients that answered into those that take part and those that are left out.

    Args:
        answers: node and identity, in order of arrival: if two equal ones answer for one partition, the first one
            stays.

    Raises:
        RosterError: nobody can take part, or two groups are equally large, which names both.
    """
    left_out: dict[int, tuple[int, str]] = {}
    candidates: list[tuple[int, Identity]] = []
    for node, identity in answers:
        if reason := describe_misfit(identity, settings, terms):
            left_out[node] = identity.partition, reason
        else:
            candidates.append((node, identity))

    usual = _find_usual(candidates, terms, left_out)
    identities: dict[int, Identity] = {}
    nodes: dict[int, int] = {}
    for node, identity in candidates:
        partition = identity.partition
        reason = describe_difference(identity, usual, terms)
        if not reason and partition in nodes:
            reason = (
                f"nodes {nodes[partition]} and {node} both answer for partition {partition}, and the first to answer "
                "stays; give every SuperNode a partition-id of its own."
            )
        if reason:
            left_out[node] = partition, reason
        else:
            identities[partition], nodes[partition] = identity, node

    return Agreement(usual.partitions, identities, nodes, left_out)


def refuse_too_few(agreement: Agreement, settings: Settings, min_clients: int | None = None) -> None:
    """Stop if too few clients are left. A run needs `min-clients`; without that setting, half of its clients and at
    least two (one if the run has a single client). It also stops if too few of them can train in a round.

    Args:
        min_clients: for a resumed run, which needs no more clients than it had; None for the setting.

    Raises:
        RosterError: names the clients that are left out and why, and the partitions for which no client answers.
    """
    number, present = agreement.number, len(agreement.identities)
    trainers = sum(identity.trains for identity in agreement.identities.values())
    sampled = settings.count_sampled(trainers)
    needed = max(1, settings.min_replies)
    fewest = settings.min_clients if min_clients is None else min_clients
    fewest = fewest or max(min(2, number), (number + 1) // 2)
    fewest = max(fewest, needed)
    if agreement.left_out and present < fewest:
        problem = f"{present} of {number} clients fit together, and at least {fewest} must."
    elif not trainers:
        problem = "no client has a single training sample; check `dataset`, `partition` and the shares."
    elif sampled < needed:
        problem = (
            f"{trainers} clients have training samples and {sampled} of them train in a round, but a round needs "
            f"{needed}, by `min-replies` {settings.min_replies}; lower that, or raise `fraction-train`."
        )
    else:
        return
    raise RosterError(" ".join(filter(None, (problem, all_left_out(agreement.left_out), nobody_for(agreement)))))


def nobody_for(agreement: Agreement) -> str:
    """A sentence that lists the partitions for which no client answers; "" if there are none."""
    answered = {*agreement.identities, *(partition for partition, _ in agreement.left_out.values())}
    missing = list(islice((p for p in range(agreement.number) if p not in answered), MOST_NAMED))
    return f"Nobody answers for the partitions {', '.join(map(str, missing))}." if missing else ""


def all_left_out(left_out: Mapping[int, tuple[int, str]]) -> str:
    """One sentence per client that is left out."""
    sentences = [f"Client {partition} (node {node}): {why}" for node, (partition, why) in left_out.items()]
    more = [f"{len(sentences) - MOST_NAMED} more are left out."] if len(sentences) > MOST_NAMED else []
    return " ".join([*sentences[:MOST_NAMED], *more])


# --- what most clients say --------------------------------------------------------------------------------------


def _find_usual(
    candidates: Sequence[tuple[int, Identity]], terms: Terms, left_out: Mapping[int, tuple[int, str]]
) -> Identity:
    """A client of the largest group that agrees on everything that no server setting decides. Several nodes of one
    partition count once.

    Raises:
        RosterError: nobody can take part, or two groups are equally large.
    """
    groups: dict[Any, dict[int, Identity]] = {}
    for _, identity in candidates:
        values = (identity.partitions, identity.class_names, identity.encoder if terms.encodes else "")
        groups.setdefault(values, {})[identity.partition] = identity
    if not groups:
        raise RosterError(f"no client can take part. {all_left_out(left_out)}")
    first, *other_groups = sorted(groups.values(), key=len, reverse=True)
    usual = next(iter(first.values()))
    if not other_groups or len(other_groups[0]) < len(first):
        return usual

    # several nodes may answer for one partition, so that both sides may have it
    side, other_side = sorted((first, other_groups[0]), key=sorted)
    one, other = side[min(side)], other_side[min(other_side)]
    difference = describe_difference(other, one, terms, f"client {one.partition}")
    raise RosterError(
        f"{_list_clients(side)} and {_list_clients(other_side)} do not agree, and neither side is larger. "
        f"Client {other.partition}: {difference} {all_left_out(left_out)}".rstrip()
    )


def describe_difference(identity: Identity, usual: Identity, terms: Terms, others: str = "most clients") -> str:
    """A sentence on the first fact in which a client differs; "" if there is none."""
    if identity.partitions != usual.partitions:
        return (
            f"it has another number of clients than {others} ({identity.partitions} instead of {usual.partitions}); "
            "set `clients`, and num-partitions of every node, to the same number."
        )
    if identity.class_names != usual.class_names:
        pairs = enumerate(zip_longest(identity.class_names, usual.class_names))
        label, names = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
        name, usual_name = ("none" if name is None else repr(one_line(name, LONGEST_NAME)) for name in names)
        return (
            f"it has another class list than {others} (class {label} is {name} instead of {usual_name}); give every "
            "client the same classes.txt, in the same order."
        )
    if terms.encodes and identity.encoder != usual.encoder:
        fingerprints = (one_line(one.encoder, LONGEST_NAME) or "none" for one in (identity, usual))
        return (
            f"it has another encoder than {others} (fingerprints {' and '.join(fingerprints)}); all must have the "
            "same weights."
        )
    return ""


def _list_clients(partitions: Collection[int]) -> str:
    more = f" and {len(partitions) - MOST_NAMED} more" if len(partitions) > MOST_NAMED else ""
    listed = ", ".join(map(str, sorted(partitions)[:MOST_NAMED]))
    return f"client{'s' if len(partitions) > 1 else ''} {listed}{more}"


# --- what the server's own settings decide ----------------------------------------------------------------------


def describe_misfit(identity: Identity, settings: Settings, terms: Terms) -> str:
    """Why a client does not fit the server's settings; "" if it does."""
    if identity.problem:
        problem = identity.problem.removeprefix(f"client {identity.partition}: ").removeprefix("client ?: ")
        return f"it says: {quoted(problem, LONGEST_PROBLEM)}"
    if settings.clients and identity.partitions != settings.clients:
        return (
            f"it says it is one of {identity.partitions}, but the run has {settings.clients} clients; set `clients` "
            "and every node's num-partitions to the same number."
        )
    if not 0 <= identity.partition < identity.partitions:
        return (
            f"it says it is partition {identity.partition} of {identity.partitions} clients, who are 0 to "
            f"{identity.partitions - 1}; correct that node's partition-id."
        )
    if identity.feature_dim != settings.feature_dim:
        return (
            f"it has features of width {identity.feature_dim}, the run of {settings.feature_dim}; prototypes can only "
            "be averaged at one width: set `feature-dim` alike."
        )
    if identity.withheld != terms.private:
        behaviour = "withholds" if identity.withheld else "discloses"
        state = "set" if terms.private else "not set"
        return (
            f"it {behaviour} its numbers of samples, but `privacy` is {state}; give it the same version and settings."
        )
    if identity.method != terms.method:
        digest = quoted(identity.method, LONGEST_NAME) if identity.method else "none"
        return (
            f"it has another file for the setting `strategy` than the server (digest {digest} there, "
            f"{terms.method or 'none'} here); give every site the same file."
        )
    if identity.settings != terms.settings:
        return (
            "it has other settings of messages than the server; both ends need the same method and settings of it, "
            "`feature-dim`, `wire-dtype`, `privacy` and `seed`, and the same version."
        )
    parts = {part.name for part in (*terms.exchange.up, *terms.exchange.down) if part.kind == "weights"}
    shared = set(read_layouts(identity.layouts))
    if shared != parts:
        names = ", ".join(repr(one_line(name, LONGEST_NAME)) for name in sorted(shared)[:MOST_NAMED])
        return (
            f"it would share weights of {names or 'no part'}, but `{settings.strategy}` exchanges those of "
            f"{', '.join(sorted(parts)) or 'no part'}; give it a model that has them, and the same version."
        )
    return ""


# --- whether a client is the earlier one ------------------------------------------------------------------------


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
