"""What a run is, of what its clients say of themselves: its settings decide where they say, else most clients do. Who
differs is left out, with the reason; a start fails only where too few are left."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
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
class _Choice:
    """What most clients decide.

    Attributes:
        what: in words. value_of: what a client says. describe: a value for people.
        difference: how a client's value differs from the others', as a part of a sentence.
    """

    what: str
    value_of: Callable[[Identity], Any]
    describe: Callable[[Any], str]
    remedy: str
    difference: Callable[[Any, Any], str] = lambda own, usual: ""


def agree(
    answers: Iterable[tuple[int, Identity]], settings: Settings, terms: Terms | None = None, *, enough: bool = True
) -> Agreement:
    """Split those who answered into who fits and who is left out.

    Args:
        answers: node and identity, in the order in which they came: of two alike for one partition the first stays.
        terms: without them nothing is asked of the method's messages.
        enough: whether to refuse too few who fit.

    Raises:
        RosterError: two sides are equally large, which names both; or too few are left, which names the others, and
            why.
    """
    split = _Split(answers)
    split.keep(_check_problem)
    number = settings.clients or split.most(NUMBER)
    split.keep(partial(_check_number, number=number))
    split.keep(partial(_check_settings, settings=settings, terms=terms))
    for choice in (CLASSES, ENCODER) if terms and terms.encodes else (CLASSES,):
        split.keep(partial(_check_choice, choice=choice, usual=split.most(choice)))

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
    agreement = Agreement(number, identities, nodes, split.left_out)
    if enough:
        refuse_few_left(agreement, settings)
    return agreement


def misfit(members: Mapping[int, Identity], newcomer: Identity, settings: Settings, terms: Terms | None) -> str:
    """Why a client that comes later does not fit in with those who are there; "" where it does."""
    node_of_newcomer = -1
    answers = [*members.items(), (node_of_newcomer, newcomer)]
    if newcomer.partition in members:
        answers = [answer for answer in answers if answer[0] != newcomer.partition]
    try:
        left_out = agree(answers, settings, terms, enough=False).left_out
    except RosterError as error:
        return str(error)
    return left_out.get(node_of_newcomer, (0, ""))[1]


def refuse_few_left(agreement: Agreement, settings: Settings) -> None:
    """Stop where fewer are left than make the run that was asked for: `min-clients`, else two (one of a run of one) and
    half of its clients; and as many as a round needs.

    Raises:
        RosterError: names who is left out and why, and the partitions for which nobody answers.
    """
    if agreement.identities and not any(identity.trains for identity in agreement.identities.values()):
        reasons = f" {all_left_out(agreement.left_out)}" if agreement.left_out else ""
        raise RosterError(
            f"no client has a single training sample; check `dataset`, `partition` and the shares.{reasons}"
        )
    number = agreement.number
    fewest = settings.min_clients or max(min(2, number), (number + 1) // 2)
    needed = max(fewest, settings.min_replies, 1)
    # who is there, but has no rows to train on, is counted where it is known who trains in a round
    if len(agreement.identities) >= needed or not agreement.left_out:
        return
    raise RosterError(
        f"{len(agreement.identities)} of {agreement.number or 'an unknown number of'} clients fit together, and at "
        f"least {needed} must. {all_left_out(agreement.left_out)}{_list_missing(agreement)}"
    )


def nobody_for(agreement: Agreement) -> str:
    """The partitions for which nobody answers, as a sentence; "" where there is none."""
    return _list_missing(agreement).strip()


def all_left_out(left_out: Mapping[int, tuple[int, str]]) -> str:
    """Who is left out, each in a sentence."""
    named = [f"Client {partition} (node {node}): {why}" for node, (partition, why) in left_out.items()]
    more = [f"{len(named) - MOST_NAMED} more are left out."] if len(named) > MOST_NAMED else []
    return " ".join([*named[:MOST_NAMED], *more])


class _Split:
    def __init__(self, answers: Iterable[tuple[int, Identity]]):
        self.fitting: list[tuple[int, Identity]] = list(answers)
        self.left_out: dict[int, tuple[int, str]] = {}

    def keep(self, why_not: Callable[[Identity], str]) -> None:
        """Leave out those of whom `why_not` says something."""
        fitting = []
        for node, identity in self.fitting:
            if why := why_not(identity):
                self.left_out[node] = identity.partition, why
            else:
                fitting.append((node, identity))
        self.fitting = fitting

    def most(self, choice: _Choice) -> Any:
        """What more clients say than anything else.

        Raises:
            RosterError: nobody is left to say it, or two sides are equally large.
        """
        # a partition has one vote, which the nodes that answer for it share
        nodes = Counter(identity.partition for _, identity in self.fitting)
        votes: dict[Any, Fraction] = {}
        voters: dict[Any, set[int]] = {}
        for _, identity in sorted(self.fitting, key=lambda answer: answer[1].partition):
            value = choice.value_of(identity)
            votes[value] = votes.get(value, Fraction(0)) + Fraction(1, nodes[identity.partition])
            voters.setdefault(value, set()).add(identity.partition)
        if not votes:
            raise RosterError(f"no client can take part. {all_left_out(self.left_out)}")
        first, *others = sorted(votes, key=lambda value: -votes[value])
        if not others or votes[others[0]] < votes[first]:
            return first
        sides = [f"{_list_clients(voters[value])} with {choice.describe(value)}" for value in (first, others[0])]
        reasons = f" {all_left_out(self.left_out)}" if self.left_out else ""
        raise RosterError(
            f"clients do not agree on the {choice.what}, and neither side is larger: {', '.join(sides)}; "
            f"{choice.remedy}.{reasons}"
        )


# --- why a client does not fit ----------------------------------------------------------------------------------


def _check_problem(identity: Identity) -> str:
    problem = identity.problem.removeprefix(f"client {identity.partition}: ").removeprefix("client ?: ")
    return f"it says: {quoted(problem, LONGEST_PROBLEM)}" if problem else ""


def _check_choice(identity: Identity, choice: _Choice, usual: Any) -> str:
    own = choice.value_of(identity)
    if own == usual:
        return ""
    return f"it has another {choice.what} than most clients ({choice.difference(own, usual)}); {choice.remedy}."


def _check_number(identity: Identity, number: int) -> str:
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


def _check_settings(identity: Identity, settings: Settings, terms: Terms | None) -> str:
    """What the server's own settings and method decide: checks of what clients send are made with what they tell."""
    strategy = settings.strategy
    if identity.feature_dim != settings.feature_dim:
        return (
            f"it has features of width {identity.feature_dim}, the run of {settings.feature_dim}; prototypes can only "
            "be averaged at one width: set `feature-dim` alike."
        )
    if terms is None:
        return ""
    if identity.withheld != terms.private:
        how = (
            "discloses its numbers of samples, but `privacy` is set"
            if terms.private
            else "withholds its numbers of samples, but `privacy` is not set"
        )
        return f"it {how}; give it the same version and settings."
    if identity.method != terms.method:
        client_digest = quoted(identity.method, LONGEST_NAME) if identity.method else "none"
        return (
            f"it has another file for the setting `strategy` than the server (digest {client_digest} there, "
            f"{terms.method or 'none'} here); give every site the same file."
        )
    if identity.settings != terms.settings:
        return (
            "it has other settings of messages than the server; both ends need the same method and settings of it, "
            "`feature-dim`, `wire-dtype`, `privacy` and `seed`, and the same version."
        )
    due = sorted({part.name for part in (*terms.exchange.up, *terms.exchange.down) if part.kind == "weights"})
    shared = sorted(read_layouts(identity.layouts))
    if shared != due:
        return (
            f"it would share weights of {_list_names(shared) or 'no part'}, but `{strategy}` exchanges those of "
            f"{', '.join(due) or 'no part'}; give it a model that has them, and the same version."
        )
    if bool(identity.class_counts) != (terms.exchange.told_counts and bool(identity.classes)):
        behaviour = "discloses no class counts" if terms.exchange.told_counts else "discloses its class counts"
        expectation = "asks for them" if terms.exchange.told_counts else "does not ask for them"
        return f"it {behaviour}, but `{strategy}` {expectation}; give it the same settings."
    return ""


def _list_missing(agreement: Agreement) -> str:
    answered = {*agreement.identities, *(partition for partition, _ in agreement.left_out.values())}
    missing = list(islice((p for p in range(agreement.number) if p not in answered), MOST_NAMED))
    return f" Nobody answers for the partitions {', '.join(map(str, missing))}." if missing else ""


def _list_clients(partitions: Collection[int]) -> str:
    more = f" and {len(partitions) - MOST_NAMED} more" if len(partitions) > MOST_NAMED else ""
    listed = ", ".join(map(str, sorted(partitions)[:MOST_NAMED]))
    return f"client{'s' if len(partitions) > 1 else ''} {listed}{more}"


def _list_names(names: Sequence[str], most: int = 5) -> str:
    """The first of some names that clients chose, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(one_line(name, LONGEST_NAME)) for name in names[:most]) + more


def _find_other_class(own: Sequence[str], usual: Sequence[str]) -> str:
    """The first class in which two lists differ."""
    for label, pair in enumerate(zip_longest(own, usual)):
        if pair[0] != pair[1]:
            first, second = ("none" if name is None else _list_names([name]) for name in pair)
            return f"class {label} is {first} where they have {second}"
    return ""


def _format_fingerprint(fingerprint: str) -> str:
    return one_line(fingerprint, LONGEST_NAME) or "none"


NUMBER = _Choice(
    "number of clients", lambda identity: identity.partitions, str, "set `clients`, and num-partitions of every node"
)
CLASSES = _Choice(
    "class list",
    lambda identity: identity.class_names,
    _list_names,
    "give every client the same classes.txt, in the same order",
    _find_other_class,
)
ENCODER = _Choice(
    "encoder",
    lambda identity: identity.encoder,
    lambda fingerprint: f"fingerprints {_format_fingerprint(fingerprint)}",
    "all must have the same weights",
    lambda own, usual: f"fingerprints {_format_fingerprint(own)} and {_format_fingerprint(usual)}",
)
