"""Decides which clients take part in a run: those that fit the server's settings and agree with most of the others."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from protosphere.core.settings import Settings
from protosphere.core.text import LONGEST_NAME, one_line, quoted
from protosphere.wire.layouts import read_layouts
from protosphere.wire.parts import Exchange
from protosphere.wire.payloads import Identity

MOST_NAMED = 20  # partitions or clients named in one sentence
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


@dataclass(frozen=True)
class Trait:
    """Something that all clients of a run must have in common and that no server setting decides.

    Attributes:
        name: in words. value_of: reads it from an identity. describe: a value in words.
        difference: how a client's value differs from the usual one, as part of a sentence.
    """

    name: str
    value_of: Callable[[Identity], Any]
    describe: Callable[[Any], str]
    difference: Callable[[Any, Any], str]
    remedy: str


def agree(answers: Iterable[tuple[int, Identity]], settings: Settings, terms: Terms | None = None) -> Agreement:
    """Split the clients that answered into those that take part and those that are left out.

    Args:
        answers: node and identity, in order of arrival: if two equal ones answer for one partition, the first one
            stays.
        terms: without them, the method's messages are not compared.

    Raises:
        RosterError: nobody can take part, or two groups are equally large, which names both.
    """
    left_out: dict[int, tuple[int, str]] = {}
    candidates: list[tuple[int, Identity]] = []
    for node, identity in answers:
        if reason := _describe_misfit(identity, settings, terms):
            left_out[node] = identity.partition, reason
        else:
            candidates.append((node, identity))

    traits = _list_traits(terms)
    usual = _find_usual(candidates, traits, left_out)
    identities: dict[int, Identity] = {}
    nodes: dict[int, int] = {}
    for node, identity in candidates:
        partition = identity.partition
        reason = _describe_difference(identity, usual, traits)
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


def misfit(newcomer: Identity, member: Identity | None, settings: Settings, terms: Terms | None) -> str:
    """Why a client that arrives later does not fit in; "" if it does.

    Args:
        member: any current member, since all members agree; None if there is none.
    """
    reason = _describe_misfit(newcomer, settings, terms)
    if reason or member is None:
        return reason
    return _describe_difference(newcomer, member, _list_traits(terms))


def refuse_too_few(agreement: Agreement, settings: Settings, number_before: int | None = None) -> None:
    """Stop if too few clients are left. A run needs `min-clients`; without that setting, half of its clients and at
    least two (one if the run has a single client). It also stops if too few of them can train in a round.

    Args:
        number_before: the number of clients of a resumed run before it was cut: `min-clients` never needs more.

    Raises:
        RosterError: names the clients that are left out and why, and the partitions for which no client answers.
    """
    number, present = agreement.number, len(agreement.identities)
    trainers = sum(identity.trains for identity in agreement.identities.values())
    sampled = settings.count_sampled(trainers)
    needed = max(1, settings.min_replies)
    fewest = settings.min_clients or max(min(2, number), (number + 1) // 2)
    if number_before is not None and settings.min_clients:
        fewest = min(fewest, number_before)
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
    candidates: Sequence[tuple[int, Identity]], traits: Sequence[Trait], left_out: Mapping[int, tuple[int, str]]
) -> Identity:
    """A client of the largest group whose traits are all equal. Several nodes of one partition count once.

    Raises:
        RosterError: nobody can take part, or two groups are equally large.
    """
    groups: dict[Any, dict[int, Identity]] = {}
    for _, identity in candidates:
        values = tuple(trait.value_of(identity) for trait in traits)
        groups.setdefault(values, {})[identity.partition] = identity
    if not groups:
        raise RosterError(f"no client can take part. {all_left_out(left_out)}")
    first, *other_groups = sorted(groups.values(), key=len, reverse=True)
    usual = next(iter(first.values()))
    if not other_groups or len(other_groups[0]) < len(first):
        return usual

    other = next(iter(other_groups[0].values()))
    trait = next(trait for trait in traits if trait.value_of(usual) != trait.value_of(other))
    sides = []
    for group, identity in sorted([(sorted(first), usual), (sorted(other_groups[0]), other)], key=lambda side: side[0]):
        sides.append(f"{_list_clients(group)} with {trait.describe(trait.value_of(identity))}")
    reasons = f" {all_left_out(left_out)}" if left_out else ""
    raise RosterError(
        f"clients do not agree on the {trait.name}, and neither side is larger: {', '.join(sides)}; "
        f"{trait.remedy}.{reasons}"
    )


def _describe_difference(identity: Identity, usual: Identity, traits: Sequence[Trait]) -> str:
    """A sentence on the first trait in which a client differs; "" if there is none."""
    for trait in traits:
        value, usual_value = trait.value_of(identity), trait.value_of(usual)
        if value != usual_value:
            difference = trait.difference(value, usual_value)
            return f"it has another {trait.name} than most clients ({difference}); {trait.remedy}."
    return ""


def _list_clients(partitions: Collection[int]) -> str:
    more = f" and {len(partitions) - MOST_NAMED} more" if len(partitions) > MOST_NAMED else ""
    listed = ", ".join(map(str, sorted(partitions)[:MOST_NAMED]))
    return f"client{'s' if len(partitions) > 1 else ''} {listed}{more}"


def _list_names(names: Sequence[str], most: int = 5) -> str:
    """The first few names that clients chose, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(one_line(name, LONGEST_NAME)) for name in names[:most]) + more


def _find_other_class(classes: Sequence[str], usual: Sequence[str]) -> str:
    """The first class in which two lists differ."""
    for label, pair in enumerate(zip_longest(classes, usual)):
        if pair[0] != pair[1]:
            first, second = ("none" if name is None else _list_names([name]) for name in pair)
            return f"class {label} is {first} where they have {second}"
    return ""


def _format_fingerprint(fingerprint: str) -> str:
    return one_line(fingerprint, LONGEST_NAME) or "none"


NUMBER = Trait(
    "number of clients",
    lambda identity: identity.partitions,
    str,
    lambda number, usual: f"{number} where they have {usual}",
    "set `clients`, and num-partitions of every node, to the same number",
)
CLASSES = Trait(
    "class list",
    lambda identity: identity.class_names,
    _list_names,
    _find_other_class,
    "give every client the same classes.txt, in the same order",
)
ENCODER = Trait(
    "encoder",
    lambda identity: identity.encoder,
    lambda fingerprint: f"fingerprints {_format_fingerprint(fingerprint)}",
    lambda fingerprint, usual: f"fingerprints {_format_fingerprint(fingerprint)} and {_format_fingerprint(usual)}",
    "all must have the same weights",
)


def _list_traits(terms: Terms | None) -> tuple[Trait, ...]:
    return (NUMBER, CLASSES, ENCODER) if terms and terms.encodes else (NUMBER, CLASSES)


# --- what the server's own settings decide ----------------------------------------------------------------------


def _describe_misfit(identity: Identity, settings: Settings, terms: Terms | None) -> str:
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
    if terms is None:
        return ""
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
        return (
            f"it would share weights of {_list_names(sorted(shared)) or 'no part'}, but `{settings.strategy}` "
            f"exchanges those of {', '.join(sorted(parts)) or 'no part'}; give it a model that has them, and the same "
            "version."
        )
    if bool(identity.class_counts) != (terms.exchange.told_counts and bool(identity.classes)):
        behaviour = "discloses its class counts" if identity.class_counts else "discloses no class counts"
        expectation = "asks for them" if terms.exchange.told_counts else "does not ask for them"
        return f"it {behaviour}, but `{settings.strategy}` {expectation}; give it the same settings."
    return ""
