"""Uploads that do not fit beside the others: too long, pointing away, or of a sudden longer than the last. A mean has
no defence of its own against one client among many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from federation.wire.payloads import Payload, class_vectors
from prototypes.mixture_set import MixtureSet
from prototypes.prototype_set import PrototypeSet
from runs.round import Reply

REMEMBERED = 5  # rounds
FEW = 3  # below so many uploads, or holders of a class, nobody can say which of them is the odd one
AWAY_ROUNDS = 3  # in a row
# With 0 for both, ProtoNorm's first rounds accuse two to six honest clients of ten, whose features have not turned
# towards the new targets yet; with these none, of two seeds.
AWAY_COSINE = -0.3
AGREEMENT = 0.5  # length of the mean of the others' directions
RISE = 3.0  # of the mean norm, from one round to the next


@dataclass
class Outliers:
    """What is remembered of the last rounds; it is part of the checkpoint, so that a resumed run judges alike.

    Attributes:
        lengths: client -> norm of the longest vector of its newest upload, in its unit.
        norms: of each round the mean norm of the prototypes.
        away: client -> rounds in a row, of those in which it uploaded, in which its prototypes pointed away.
    """

    lengths: dict[int, float] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    away: dict[int, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"norms": self.norms, **{name: _keys(getattr(self, name), str) for name in ("lengths", "away")}}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Outliers":
        """Inverse of `as_json`."""
        return cls(_keys(kept["lengths"], int), kept["norms"], _keys(kept["away"], int))

    def without_long(
        self, replies: Sequence[Reply], units: Mapping[int, float], ratio: float, allowed: float
    ) -> list[Reply]:
        """Drop the uploads with a vector longer than `ratio` times the median over all clients that have uploaded, of
        each the newest; where those are fewer than three nobody can say which is the odd one, and none is dropped.

        Args:
            units: by partition, what its norms are measured in (1 where it is missing).
            allowed: a norm that is never too long: twice that of the targets, where the method itself sets it. A
                client with many rows may follow them in the round in which most have hardly begun to.
        """
        found = {
            reply.partition: _longest(reply.report.payload) / units.get(reply.partition, 1.0)
            for reply in replies
            if reply.report and reply.report.payload is not None
        }
        # of every client the newest, dropped ones too: where all features grow, the measure grows with them
        self.lengths |= found
        usual = median(self.lengths.values()) if len(self.lengths) >= FEW else 0.0
        most = max(ratio * usual, allowed)
        # zero prototypes, as of dead features, are no measure for others
        long = {partition for partition, norm in found.items() if usual > 0 and norm > most}
        return [
            _dropped(reply, found[reply.partition], usual, ratio) if reply.partition in long else reply
            for reply in replies
        ]

    def warnings(
        self, uploads: Mapping[int, Payload], units: Mapping[int, float], norm: float | None, targets: float
    ) -> list[str]:
        """Sentences on a mean norm that has risen and on clients that point away; remembers the round.

        Args:
            norm: the mean norm of the prototypes, None where the method does not watch it.
            targets: that of the targets that they were trained towards, 0 for none.
        """
        return [*self._rising(uploads, units, norm, targets), *self._pointing_away(uploads)]

    def _rising(
        self, uploads: Mapping[int, Payload], units: Mapping[int, float], norm: float | None, targets: float
    ) -> list[str]:
        if norm is None:
            return []
        before = median(self.norms) if self.norms else 0.0
        self.norms = [*self.norms, norm][-REMEMBERED:]
        if not before or norm <= RISE * max(before, targets):
            return []
        lengths = {partition: _longest(upload) / units.get(partition, 1.0) for partition, upload in uploads.items()}
        longest = max(lengths, key=lambda partition: lengths[partition])
        return [
            f"the mean norm of the prototypes has risen from {before:.3g} to {norm:.3g}, and those of client {longest} "
            f"are the longest ({lengths[longest]:.3g}, the median is {median(lengths.values()):.3g}): if they are "
            "wrong, leave that client out or lower `max-norm-ratio`; if all have risen, lower `learning-rate`"
        ]

    def _pointing_away(self, uploads: Mapping[int, Payload]) -> list[str]:
        found = {partition: class_vectors(upload) for partition, upload in uploads.items()}
        sets = {partition: each for partition, each in found.items() if isinstance(each, PrototypeSet)}
        for partition, share in _away(sets).items():
            self.away[partition] = self.away.get(partition, 0) + 1 if share > 0.5 else 0
        return [
            f"the prototypes of client {partition} have pointed away from the others' for most of its classes "
            f"{self.away[partition]} times in a row: look at its labels, its data and its software, or leave it out"
            for partition in sets
            if self.away.get(partition, 0) and self.away[partition] % AWAY_ROUNDS == 0
        ]


def without_heavy(replies: Sequence[Reply], group: Callable[[int], int], ratio: float) -> list[Reply]:
    """Drop the uploads of weights with a tensor whose norm is more than `ratio` times the median of that tensor over
    its group's uploads of the round, where those are three or more."""
    groups: dict[int, list[Reply]] = {}
    for reply in replies:
        if reply.waits:
            groups.setdefault(group(reply.partition), []).append(reply)
    heavy: dict[int, tuple[str, float, float]] = {}
    for members in groups.values():
        if len(members) < FEW:
            continue
        for name in members[0].waits or ():
            usual = median((each.waits or {})[name] for each in members)
            for each in members:
                norm = (each.waits or {})[name]
                if usual > 0 and norm > ratio * usual:
                    heavy.setdefault(each.partition, (name, norm, usual))
    return [_heavy(reply, *heavy[reply.partition], ratio) if reply.partition in heavy else reply for reply in replies]


def _heavy(reply: Reply, name: str, norm: float, usual: float, ratio: float) -> Reply:
    problem = (
        f"upload dropped: its {name} has norm {norm:.3g}, {norm / usual:.3g} times the usual {usual:.3g} of a "
        f"round's uploads (`max-norm-ratio` is {ratio:g})"
    )
    return replace(reply, waits=None, problem=problem, dropped=True)


def _keys(values: Mapping[Any, Any], kind: Callable[[Any], Any]) -> dict[Any, Any]:
    return {kind(key): value for key, value in sorted(values.items())}


def _longest(payload: Payload) -> float:
    """Norm of the longest vector; of a mixture's component that of a draw, in the mean square."""
    upload = class_vectors(payload)
    if upload is None or not len(upload):
        return 0.0
    if isinstance(upload, MixtureSet):
        squares = upload.means.double().square().sum(dim=1) + upload.variances.double().sum(dim=1)
        return float(squares.max().sqrt())
    return float(upload.vectors.double().norm(dim=1).max())


def _dropped(reply: Reply, norm: float, usual: float, ratio: float) -> Reply:
    assert reply.report is not None
    problem = (
        f"upload dropped: its longest vector has norm {norm:.3g}, {norm / usual:.3g} times the usual {usual:.3g} of a "
        f"round's uploads (`max-norm-ratio` is {ratio:g})"
    )
    return replace(reply, report=replace(reply.report, payload=None), problem=problem, dropped=True)


def _away(sets: Mapping[int, PrototypeSet]) -> dict[int, float]:
    """For each client the share of its classes whose prototype points clearly away from the mean *direction* of the
    other holders', where these agree: directions, since one long vector would turn a mean of vectors, and honest
    clients away from it. Of the classes that three clients hold at least; a client without any is missing."""
    if not sets:
        return {}
    owner = torch.tensor([partition for partition, each in sets.items() for _ in range(len(each))])
    labels = torch.cat([each.labels for each in sets.values()])
    directions = torch.nn.functional.normalize(torch.cat([each.vectors.double() for each in sets.values()]), dim=1)
    classes = int(labels.max()) + 1 if len(labels) else 0
    sums = directions.new_zeros(classes, directions.shape[1]).index_add_(0, labels, directions)
    holders = torch.bincount(labels, minlength=classes)[labels]
    common = holders >= FEW
    others = (sums[labels] - directions) / (holders - 1).clamp(min=1).unsqueeze(1)
    agreement = others.norm(dim=1)
    negative: Tensor = ((directions * others).sum(dim=1) < AWAY_COSINE * agreement) & (agreement >= AGREEMENT)
    return {
        partition: float(negative[mine].double().mean())
        for partition in sets
        if bool((mine := (owner == partition) & common).any())
    }
