"""Uploads of weights beside each other: how far each has gone from what its client was sent, and whether it goes the
way of the others.

Not the weights but their changes are compared: these are far smaller, and a client that sends its weights reversed, or
twice as long, has weights of an ordinary length. Where nothing was sent, as in round 1, clients started alike, and a
change is the distance from the median of each value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from federation.wire.payloads import Payload, parts_of
from federation.wire.specs import Exchange
from prototypes.weights import STATISTICS, Length, Weights
from runs.round import Reply
from strategies.rounds.waiting import Scratch, Waiting

FEW = 3  # of fewer uploads nobody can say which of them is the odd one
# A change of so little of the usual norm of a tensor is never too large: where others hardly change, rounding on the
# way is many times their change.
SMALL = 0.1
# A generator learns against the model, and honest ones have gone further than their own length in a round: their
# weights are compared, not their changes.
WHOLE = ("generator",)
AWAY_COSINE = -0.3
AGREEMENT = 0.25  # mean cosine of two of the others, from which their mean says where most go
Tensors = tuple[str, str]  # a part and a tensor of it
Measured = Mapping[Tensors, Length]


class Changes:
    """Of one run.

    Attributes:
        sent: partition -> what the client was sent in this round, None for nothing.
        times: partition -> of the last round with three uploads in a group, how many times as far as usual the tensor
            has gone that has gone farthest.
    """

    def __init__(self, exchange: Exchange, scratch: Scratch):
        down = {spec.name for spec in exchange.down}
        waiting = [spec for spec in exchange.up if spec.kind == "weights" and spec.waits and spec.name in down]
        self._parts = [spec.name for spec in waiting]
        self._are_changes = {spec.name for spec in waiting if spec.change or spec.name in WHOLE}
        self._scratch = scratch
        self.sent: dict[int, Payload | None] = {}
        self.times: dict[int, float] = {}

    def keep(self, partition: int, upload: Payload) -> Measured:
        """Let an upload wait in its file; of the weights that come down again their lengths stay."""
        self._scratch.put(partition, upload)
        parts = parts_of(upload)
        return {
            (part, name): length
            for part in self._parts
            if isinstance(weights := parts.get(part), Weights)
            for name, length in self._lengths(partition, part, weights).items()
        }

    def without_far(self, replies: Sequence[Reply], group: Callable[[int], int], ratio: float) -> list[Reply]:
        """Drop the uploads with a tensor that has gone `ratio` times as far as its group's median, of three or more."""
        self.times = {}
        problems: dict[int, str] = {}
        for members in _by_group(replies, group):
            problems |= self._far(self._changes(members), ratio)
        return [
            replace(reply, waits=None, vectors=None, problem=problems[reply.partition], dropped=True)
            if reply.partition in problems
            else reply
            for reply in replies
        ]

    def against_others(self, replies: Sequence[Reply], group: Callable[[int], int]) -> dict[int, bool]:
        """Of clients whose changes can be held against three others' or more: whether they point clearly away from the
        mean direction of these, where these agree."""
        found: dict[int, bool] = {}
        for members in _by_group(replies, group):
            if not _measured(members):
                continue
            cosines, lengths = self._beside_others(members)
            others = len(members) - 1
            if others < FEW:
                continue
            # of m directions with mean cosine c the mean has the squared length 1/m + (1 - 1/m) c
            agreement = (others * lengths.square() - 1) / (others - 1)
            for place, partition in enumerate(members):
                found[partition] = bool(cosines[place] < AWAY_COSINE and agreement[place] >= AGREEMENT)
        return found

    def _lengths(self, partition: int, part: str, weights: Weights) -> dict[str, Length]:
        if part in self._are_changes:
            return {name: Length(norm, norm) for name, (norm, _) in weights.lengths(None).items()}
        return weights.lengths(self._start(partition, part))

    def _start(self, partition: int, part: str) -> Weights | None:
        sent = self.sent.get(partition)
        found = None if sent is None else parts_of(sent).get(part)
        return found if isinstance(found, Weights) else None

    def _changes(self, members: Mapping[int, Measured]) -> dict[int, dict[Tensors, Length]]:
        """Of each upload; all have changes."""
        if _measured(members):
            return {partition: dict(measured) for partition, measured in members.items()}
        found: dict[int, dict[Tensors, Length]] = {
            partition: {tensor: length for tensor, length in measured.items() if length.change is not None}
            for partition, measured in members.items()
        }
        squares: dict[Tensors, Tensor] = {}
        for tensor, rows in self._rows(members, [part for part in self._parts if part not in self._are_changes]):
            # a quarter of torch's time
            middle = (len(rows) - 1) // 2
            centre = torch.from_numpy(np.partition(rows.numpy(), middle, axis=0)[middle])
            square = torch.linalg.vector_norm(rows - centre, dim=1, dtype=torch.float64).square()
            squares[tensor] = squares.get(tensor, 0) + square
        for tensor, square in squares.items():
            for (partition, measured), distance in zip(members.items(), square.sqrt().tolist(), strict=True):
                found[partition][tensor] = Length(measured[tensor].norm, distance)
        return found

    def _far(self, changes: Mapping[int, Mapping[Tensors, Length]], ratio: float) -> dict[int, str]:
        problems: dict[int, str] = {}
        for tensor in next(iter(changes.values())):
            lengths = {partition: measured[tensor] for partition, measured in changes.items()}
            usual = median(length.change or 0.0 for length in lengths.values())
            allowed = max(ratio * usual, SMALL * median(length.norm for length in lengths.values()))
            if not usual > 0:
                continue
            for partition, (_, change) in lengths.items():
                change = change or 0.0
                if change > allowed:
                    problems.setdefault(partition, _words(tensor[1], change, usual, ratio))
                elif partition not in problems:
                    self.times[partition] = max(self.times.get(partition, 0.0), change / usual)
        for partition in problems:
            self.times.pop(partition, None)
        return problems

    def _beside_others(self, members: Mapping[int, Measured]) -> tuple[Tensor, Tensor]:
        """Cosines of each change with the mean direction of the others', and the lengths of these means; (n,) each."""
        parts = [part for part in self._parts if part not in WHOLE]
        squares = [
            sum((length.change or 0.0) ** 2 for (part, _), length in measured.items() if part in parts)
            for measured in members.values()
        ]
        norms = torch.tensor(squares, dtype=torch.float64).sqrt()
        scale, moved = torch.where(norms > 0, 1 / norms, 0.0), (norms > 0).double()
        products, square = torch.zeros_like(scale), torch.zeros((), dtype=torch.float64)
        for _, rows in self._rows(members, parts, from_start=True):
            directions = scale.float().unsqueeze(1) * rows
            total = directions.sum(dim=0)
            products += (directions @ total).double()
            square += (total @ total).double()
        others = (square - 2 * products + moved).clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        return (products - moved) / others, others / (len(norms) - 1)

    def _rows(
        self, members: Mapping[int, Measured], parts: Sequence[str], from_start: bool = False
    ) -> Iterator[tuple[Tensors, Tensor]]:
        """Pieces (n, m) of the tensors of these parts, a row an upload.

        Args:
            from_start: less what each client was sent.
        """
        partitions = list(members)
        present = {part for part, _ in next(iter(members.values()))}
        for part in parts:
            if part not in present:
                continue
            starts = [self._start(partition, part) for partition in partitions]
            before, at = "", 0
            for name, piece in Waiting(self._scratch, partitions).rows(partitions, part):
                before, at = name, at if name == before else 0
                stop = at + piece.shape[1]
                if not name.endswith(STATISTICS):
                    if from_start and part not in self._are_changes:
                        for row, start in zip(piece, starts, strict=True):
                            if start is not None:
                                row -= start.tensors[name].reshape(-1)[at:stop]
                    yield (part, name), piece
                at = stop


def _by_group(replies: Sequence[Reply], group: Callable[[int], int]) -> Iterator[dict[int, Measured]]:
    """Groups with three uploads or more, partition -> lengths."""
    groups: dict[int, dict[int, Measured]] = {}
    for reply in replies:
        if reply.waits:
            groups.setdefault(group(reply.partition), {})[reply.partition] = reply.waits
    for members in groups.values():
        # of two that tell different parts of their model neither is the odd one
        alike = [each for each in members.values() if each.keys() == next(iter(members.values())).keys()]
        if len(members) >= FEW and len(alike) == len(members):
            yield members


def _measured(members: Mapping[int, Measured]) -> bool:
    return all(length.change is not None for measured in members.values() for length in measured.values())


def _words(name: str, change: float, usual: float, ratio: float) -> str:
    return (
        f"upload dropped: its tensor `{name}` has changed by {change:.3g}, {change / usual:.3g} times the usual "
        f"{usual:.3g} of a round's uploads (`max-norm-ratio` is {ratio:g})"
    )
