"""Which clients take part in a run: those that fit the server's settings and agree with most others on the rest."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from protosphere.core.settings import Settings
from protosphere.core.text import LONGEST_NAME, one_line, quoted
from protosphere.wire.layouts import read_layouts
from protosphere.wire.parts import Exchange
from protosphere.wire.payloads import Identity

MOST_NAMED = 20  # partitions or clients of one sentence
LONGEST_PROBLEM = 600  # characters of what keeps a client from taking part: with paths, and the remedy


class RosterError(ValueError):
    """The clients do not fit together; names the client and the remedy."""


@dataclass(frozen=True)
class Terms:
    """What the server knows of a run beside its shared settings.

    Attributes:
        exchange: what the method's messages are made of.
        private: whether the run is one under `privacy`.
        encodes: whether clients read rows through an encoder.
        method: digest of the server's file, "" of a method of ours.
        settings: digest of the server's settings by which messages are read.
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
        number: how many clients the run has.
        identities, nodes: partition -> who it says it is, and its node.
        left_out: node -> (partition, why it takes no part).
    """

    number: int
    identities: dict[int, Identity]
    nodes: dict[int, int]
    left_out: dict[int, tuple[int, str]]


@dataclass(frozen=True)
class Trait:
    """What the clients of a run must have in common, and no setting of the server decides.

    Attributes:
        name: in words. value_of: what a client says. describe: a value for people.
        difference: how a client's value differs from that of most, as a part of a sentence.
    """

    name: str
    value_of: Callable[[Identity], Any]
    describe: Callable[[Any], str]
    difference: Callable[[Any, Any], str]
    remedy: str


def agree(answers: Iterable[tuple[int, Identity]], settings: Settings, terms: Terms | None = None) -> Agreement:
    """Split those who answered into who takes part and who is left out.

    Args:
        answers: node and identity, in the order in which they came: of two alike for one partition the first stays.
        terms: without them nothing is asked of the method's messages.

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
    """Why a client that comes later does not fit in; "" where it does.

    Args:
        member: one of those who are there, who all agree; None where there is no other.
    """
    reason = _describe_misfit(newcomer, settings, terms)
    if reason or member is None:
        return reason
    return _describe_difference(newcomer, member, _list_traits(terms))


def refuse_too_few(agreement: Agreement, settings: Settings, number_before: int | None = None) -> None:
    """Stop where fewer are left than make the run that was asked for: `min-clients`, else two (one of a run of one) and
    half of its clients; or where fewer train in a round than it needs.

    Args:
        number_before: of a run that is resumed, how many clients it had: `min-clients` asks for no more.

    Raises:
        RosterError: names who is left out and why, and the partitions for which nobody answers.
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
    """The partitions for which nobody answers, as a sentence; "" where there is none."""
    answered = {*agreement.identities, *(partition for partition, _ in agreement.left_out.values())}
    missing = list(islice((p for p in range(agreement.number) if p not in answered), MOST_NAMED))
    return f"Nobody answers for the partitions {', '.join(map(str, missing))}." if missing else ""


def all_left_out(left_out: Mapping[int, tuple[int, str]]) -> str:
    """Who is left out, each in a sentence."""
    sentences = [f"Client {partition} (node {node}): {why}" for node, (partition, why) in left_out.items()]
    more = [f"{len(sentences) - MOST_NAMED} more are left out."] if len(sentences) > MOST_NAMED else []
    return " ".join([*sentences[:MOST_NAMED], *more])


# --- what most clients say --------------------------------------------------------------------------------------


def _find_usual(
    candidates: Sequence[tuple[int, Identity]], traits: Sequence[Trait], left_out: Mapping[int, tuple[int, str]]
) -> Identity:
    """A client of the largest group with all traits in common. Many nodes of one partition count once.

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
    """The first trait in which a client differs, as a sentence; "" where there is none."""
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
    """The first of some names that clients chose, and how many more there are."""
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
    """Why a client does not fit the server, whatever the others say; "" where it does."""
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
