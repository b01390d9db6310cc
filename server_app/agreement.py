"""What a run is, of what its clients say of themselves: its settings decide where they say, else most clients do. Who
differs is left out, with the reason; a start fails only where too few are left."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TypeVar

from protosphere.core.settings import Settings
from protosphere.core.text import LONGEST_NAME, one_line, quoted
from protosphere.wire.codec import REMEDY, Codec, codec_of, encoder_in
from protosphere.wire.payloads import Identity
from protosphere.wire.specs import Exchange
from protosphere.wire.weights import read_layouts

MOST_NAMED = 20  # partitions or clients of one sentence
LONGEST_PROBLEM = 600  # characters of what keeps a client from taking part: with paths, and the remedy
Value = TypeVar("Value", bound=Hashable)


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
    """

    exchange: Exchange
    private: bool = False
    encodes: bool = False
    method: str = ""


@dataclass(frozen=True)
class Agreement:
    """Who takes part.

    Attributes:
        number: how many clients the run has.
        identities, nodes: partition -> who it says it is, and its node.
        left_out: node -> (partition, why it takes no part).
        codec: how all of them write; None without terms.
    """

    number: int
    identities: dict[int, Identity]
    nodes: dict[int, int]
    left_out: dict[int, tuple[int, str]]
    codec: Codec | None = None


def agree(heard: Iterable[tuple[int, Identity]], settings: Settings, terms: Terms | None = None) -> Agreement:
    """Split those who answered into who fits and who is left out.

    Args:
        heard: node and identity, in the order in which they came: of two alike for one partition the first stays.
        terms: without them nothing is asked of the method's messages.

    Raises:
        RosterError: two sides are equally large, which names both; or too few are left, which names the others, and
            why.
        SettingError: no codec can be made of what they agree on.
    """
    split = _Split(heard)
    split.keep(lambda it: f"it says: {quoted(_own_words(it), LONGEST_PROBLEM)}" if it.problem else "")
    number = settings.clients or split.most(
        lambda it: it.partitions, "how many clients there are", str, "set `clients`, and num-partitions of every node"
    )
    split.keep(lambda it: _other_number(it, number))
    split.keep(
        lambda it: (
            f"it has features of width {it.feature_dim}, the run of {settings.feature_dim}; prototypes can only be "
            "averaged at one width: set `feature-dim` alike."
            if it.feature_dim != settings.feature_dim
            else ""
        )
    )
    if terms:
        split.keep(lambda it: _other_terms(it, terms, settings.strategy))
    names = split.most(
        lambda it: it.class_names, "the class list", _some, "give every client the same classes.txt, in the same order"
    )
    split.keep(
        lambda it: (
            f"it has another class list than most clients ({_difference(it, names)}); give every client the same "
            "classes.txt, in the same order."
            if it.class_names != names
            else ""
        )
    )
    codec = _agreed_codec(split, settings, terms, len(names)) if terms else None
    identities: dict[int, Identity] = {}
    nodes: dict[int, int] = {}
    for node, identity in split.fitting:
        if identity.partition in nodes:
            split.left_out[node] = (
                identity.partition,
                f"nodes {nodes[identity.partition]} and {node} both answer for partition {identity.partition}, and the "
                "first to answer stays; give every SuperNode a partition-id of its own.",
            )
            continue
        identities[identity.partition], nodes[identity.partition] = identity, node
    found = Agreement(number, identities, nodes, split.left_out, codec)
    refuse_few_left(found, settings)
    return found


def refuse_few_left(found: Agreement, settings: Settings) -> None:
    """Stop where fewer are left than make the run that was asked for: two (one of a run of one), half of its clients,
    and as many as a round needs.

    Raises:
        RosterError: names who is left out and why, and the partitions for which nobody answers.
    """
    if found.identities and not any(identity.trains for identity in found.identities.values()):
        others = f" {all_left_out(found.left_out)}" if found.left_out else ""
        raise RosterError(f"no client has a single training row; check `dataset`, `partition` and the shares.{others}")
    needed = max(min(2, found.number), (found.number + 1) // 2, settings.min_replies, settings.min_train_clients, 1)
    # who is there, but has no rows to train on, is counted where it is known who trains in a round
    if len(found.identities) >= needed or not found.left_out:
        return
    raise RosterError(
        f"{len(found.identities)} of {found.number or 'an unknown number of'} clients fit together, and at least "
        f"{needed} must. {all_left_out(found.left_out)}{_missing(found)}"
    )


def nobody_for(found: Agreement) -> str:
    """The partitions for which nobody answers, as a sentence; "" where there is none."""
    return _missing(found).strip()


def all_left_out(left_out: Mapping[int, tuple[int, str]]) -> str:
    """Who is left out, each in a sentence."""
    named = [f"Client {partition} (node {node}): {why}" for node, (partition, why) in left_out.items()]
    more = [f"{len(named) - MOST_NAMED} more are left out."] if len(named) > MOST_NAMED else []
    return " ".join([*named[:MOST_NAMED], *more])


class _Split:
    def __init__(self, heard: Iterable[tuple[int, Identity]]):
        self.fitting: list[tuple[int, Identity]] = list(heard)
        self.left_out: dict[int, tuple[int, str]] = {}

    def keep(self, why_not: Callable[[Identity], str]) -> None:
        """Leave out those of whom `why_not` says something."""
        kept = []
        for node, identity in self.fitting:
            if why := why_not(identity):
                self.left_out[node] = identity.partition, why
            else:
                kept.append((node, identity))
        self.fitting = kept

    def most(self, of: Callable[[Identity], Value], what: str, said: Callable[[Value], str], remedy: str) -> Value:
        """What more clients say than anything else.

        Raises:
            RosterError: nobody is left to say it, or two sides are equally large.
        """
        # a partition has one vote, which the nodes that answer for it share
        nodes = Counter(identity.partition for _, identity in self.fitting)
        votes: dict[Value, Fraction] = {}
        for _, identity in sorted(self.fitting, key=lambda each: each[1].partition):
            value = of(identity)
            votes[value] = votes.get(value, Fraction(0)) + Fraction(1, nodes[identity.partition])
        if not votes:
            raise RosterError(f"no client can take part. {all_left_out(self.left_out)}")
        (first, number), *others = sorted(votes.items(), key=lambda each: -each[1])[:2]
        if not others or others[0][1] < number:
            return first
        sides = []
        for value in (first, others[0][0]):
            who = sorted(identity.partition for _, identity in self.fitting if of(identity) == value)
            sides.append(f"{_clients(who)} with {said(value)}")
        rest = f" {all_left_out(self.left_out)}" if self.left_out else ""
        raise RosterError(
            f"clients do not agree on {what}, and neither side is larger: {', '.join(sides)}; {remedy}.{rest}"
        )


def _own_words(identity: Identity) -> str:
    """Its problem without the beginning that names itself."""
    return identity.problem.removeprefix(f"client {identity.partition}: ").removeprefix("client ?: ")


def _other_number(identity: Identity, number: int) -> str:
    if identity.partitions != number:
        return (
            f"it says it is one of {identity.partitions}, but the run has {number} clients; set `clients` and every "
            "node's num-partitions to the same number."
        )
    if not 0 <= identity.partition < number:
        return (
            f"it says it is partition {identity.partition}, but the run's {number} clients are 0 to {number - 1}; "
            "correct that node's partition-id."
        )
    return ""


def _other_terms(identity: Identity, terms: Terms, strategy: str) -> str:
    """What the server's own settings and method decide: checks of what clients send are made with what they tell."""
    if identity.withheld != terms.private:
        how = (
            "tells its rows, but `privacy` is set" if terms.private else "withholds its rows, but `privacy` is not set"
        )
        return f"it {how}; give it the same version and settings."
    if identity.method != terms.method:
        there = quoted(identity.method, LONGEST_NAME) if identity.method else "none"
        return (
            f"it has another file for the setting `strategy` than the server (digest {there} there, "
            f"{terms.method or 'none'} here); give every site the same file."
        )
    due = sorted({spec.name for spec in (*terms.exchange.up, *terms.exchange.down) if spec.kind == "weights"})
    shared = sorted(read_layouts(identity.layouts))
    if shared != due:
        return (
            f"it would share weights of {_some(shared) or 'no part'}, but `{strategy}` exchanges those of "
            f"{', '.join(due) or 'no part'}; give it a model that has them, and the same version."
        )
    if bool(identity.class_counts) != (terms.exchange.told_counts and bool(identity.classes)):
        said = "tells no class counts" if terms.exchange.told_counts else "tells its class counts"
        asked = "asks for them" if terms.exchange.told_counts else "does not ask for them"
        return f"it {said}, but `{strategy}` {asked}; give it the same settings."
    return ""


def _agreed_codec(split: _Split, settings: Settings, terms: Terms, num_classes: int) -> Codec:
    codec = codec_of(settings, num_classes, settings.feature_dim, terms.exchange)
    if terms.encodes:
        remedy = "all must have the same weights"
        usual = split.most(
            lambda it: encoder_in(it.codec), "the encoder", lambda print_: f"fingerprints {_print(print_)}", remedy
        )
        split.keep(
            lambda it: (
                f"it came with another encoder than most clients (fingerprints {_print(encoder_in(it.codec))} and "
                f"{_print(usual)}): {remedy}."
                if encoder_in(it.codec) != usual
                else ""
            )
        )
        codec = replace(codec, encoder=usual)
    split.keep(
        lambda it: (
            f"it writes its prototypes with another codec than the server ({difference}); {REMEDY}."
            if (difference := codec.difference(it.codec))
            else ""
        )
    )
    return codec


def _print(fingerprint: str) -> str:
    return one_line(fingerprint, LONGEST_NAME) or "none"


def _missing(found: Agreement) -> str:
    answered = {*found.identities, *(partition for partition, _ in found.left_out.values())}
    missing = list(islice((p for p in range(found.number) if p not in answered), MOST_NAMED))
    return f" Nobody answers for the partitions {', '.join(map(str, missing))}." if missing else ""


def _clients(partitions: Sequence[int]) -> str:
    more = f" and {len(partitions) - MOST_NAMED} more" if len(partitions) > MOST_NAMED else ""
    listed = ", ".join(map(str, partitions[:MOST_NAMED]))
    return f"client{'s' if len(partitions) > 1 else ''} {listed}{more}"


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
    return f"class {index} is {_some(own[index : index + 1])} where they have {_some(usual[index : index + 1])}"


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first of some names that clients chose, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(one_line(name, LONGEST_NAME)) for name in names[:most]) + more
