"""Uploads of weights beside each other: how far each has gone from what its client was sent, and whether it goes the
way of the others.

Not the weights but their changes are compared: these are far smaller, and a client that sends its weights reversed, or
twice as long, has weights of an ordinary length. Where nothing was sent, as in round 1, clients started alike, and a
change is the distance from the median of each value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor

from protosphere.prototypes.weights import STATISTICS, Length, Weights
from protosphere.record.replies import Reply, StoredUploads, UploadFiles
from protosphere.wire.payloads import Payload, weights_of
from protosphere.wire.specs import Exchange

# Changes of so little of the usual norm of a tensor, or of its whole part, are never too large: a site with a hundred
# times the samples of others takes as many steps, and where others hardly change, or begin at 0, rounding is many times
# their change. To send weights reversed is a change of twice their norm.
SMALL, LEAST = 0.5, 0.005
SAMPLED = 64  # uploads whose median is the centre of round 1
# A generator learns against the model, and honest ones have gone further than their own length in a round: their
# weights are compared, not their changes.
WHOLE = ("generator",)
AGREEMENT = 0.25  # mean cosine of two of the others, from which their mean says where most go
FEW = 3  # below so many uploads nobody can say which of them is the odd one
AWAY_COSINE = -0.3  # below which a change goes against the others'
Tensors = tuple[str, str]  # a part and a tensor of it
Measured = Mapping[Tensors, Length]


class Changes:
    """Of one run.

    Attributes:
        sent: partition -> what the client was sent in this round, None for nothing.
        lengths: partition -> of an upload that waits, the lengths of its weights that come down again.
        times: partition -> of the last round with three uploads in a group, how many times as far as usual the tensor
            has gone that has gone farthest.
    """

    def __init__(self, exchange: Exchange, upload_files: UploadFiles):
        down = {spec.name for spec in exchange.down}
        waiting = [spec for spec in exchange.up if spec.kind == "weights" and spec.waits and spec.name in down]
        self._parts = [spec.name for spec in waiting]
        self._are_changes = {spec.name for spec in waiting if spec.change or spec.name in WHOLE}
        self._upload_files = upload_files
        self.sent: dict[int, Payload | None] = {}
        self.lengths: dict[int, Measured] = {}
        self.times: dict[int, float] = {}

    def measure(self, partition: int, upload: Payload) -> None:
        """Take the lengths of an upload that goes to its file."""
        lengths: dict[Tensors, Length] = {}
        for part in self._parts:
            if part in upload:
                weights = weights_of(upload, part)
                for name, length in self._measure_lengths(partition, part, weights).items():
                    lengths[part, name] = length
        self.lengths[partition] = lengths

    def without_far(self, replies: Sequence[Reply], group: Callable[[int], int], ratio: float) -> list[Reply]:
        """Drop the uploads with a tensor that has gone `ratio` times as far as its group's median, of three or more."""
        self.times = {}
        problems: dict[int, str] = {}
        for members in self._group_lengths(replies, group):
            problems |= self._find_far(self._measure_changes(members), ratio)
        return [
            reply.without_upload(problems[reply.partition]) if reply.partition in problems else reply
            for reply in replies
        ]

    def against_others(self, replies: Sequence[Reply], group: Callable[[int], int]) -> dict[int, bool]:
        """Of clients whose changes can be held against three others' or more: whether they point clearly away from the
        mean direction of these, where these agree."""
        points_away: dict[int, bool] = {}
        for members in self._group_lengths(replies, group):
            num_others = len(members) - 1
            if num_others < FEW or not _are_measured(members):
                continue
            cosines, lengths = self._compare_with_others(members)
            # of m directions with mean cosine c the mean has the squared length 1/m + (1 - 1/m) c
            agreement = (num_others * lengths.square() - 1) / (num_others - 1)
            for index, partition in enumerate(members):
                points_away[partition] = bool(cosines[index] < AWAY_COSINE and agreement[index] >= AGREEMENT)
        return points_away

    def _group_lengths(self, replies: Sequence[Reply], group: Callable[[int], int]) -> Iterator[dict[int, Measured]]:
        """Groups with three uploads or more, partition -> lengths."""
        groups: dict[int, dict[int, Measured]] = {}
        for reply in replies:
            lengths = self.lengths.get(reply.partition) if reply.waits else None
            if lengths:
                groups.setdefault(group(reply.partition), {})[reply.partition] = lengths
        for members in groups.values():
            # of two that tell different parts of their model neither is the odd one
            tensors = next(iter(members.values())).keys()
            if len(members) >= FEW and all(lengths.keys() == tensors for lengths in members.values()):
                yield members

    def _measure_lengths(self, partition: int, part: str, weights: Weights) -> dict[str, Length]:
        if part in self._are_changes:
            # as one: of changes nobody knows how long the weights are
            total_norm = sum(norm**2 for norm, _ in weights.lengths(None).values()) ** 0.5
            return {"": Length(total_norm, total_norm)}
        return weights.lengths(self._find_start(partition, part))

    def _find_start(self, partition: int, part: str) -> Weights | None:
        sent = self.sent.get(partition) or {}
        return weights_of(sent, part) if part in sent else None

    def _measure_changes(self, members: Mapping[int, Measured]) -> dict[int, dict[Tensors, Length]]:
        """Of each upload; all have changes."""
        if _are_measured(members):
            return {partition: dict(measured) for partition, measured in members.items()}
        lengths_by_partition: dict[int, dict[Tensors, Length]] = {
            partition: {tensor: length for tensor, length in measured.items() if length.change is not None}
            for partition, measured in members.items()
        }
        partitions = list(members)
        centre = self._compute_centre(partitions[:: max(1, len(partitions) // SAMPLED)])
        for partition in partitions:
            for tensor, values in self._read_tensors(partition):
                if tensor in centre:
                    change = float(torch.linalg.vector_norm(values - centre[tensor], dtype=torch.float64))
                    lengths_by_partition[partition][tensor] = Length(members[partition][tensor].norm, change)
        return lengths_by_partition

    def _compute_centre(self, partitions: Sequence[int]) -> dict[Tensors, Tensor]:
        """The median of each value of these uploads, of parts that are no changes, each tensor (m,)."""
        pieces: dict[Tensors, list[Tensor]] = {}
        middle = (len(partitions) - 1) // 2
        for part in self._parts:
            if part in self._are_changes:
                continue
            for name, rows in StoredUploads(self._upload_files, partitions).rows(partitions, part):
                # a quarter of torch's time
                values = torch.from_numpy(np.partition(rows.numpy(), middle, axis=0)[middle])
                pieces.setdefault((part, name), []).append(values)
        return {tensor: torch.cat(chunks) for tensor, chunks in pieces.items() if not tensor[1].endswith(STATISTICS)}

    def _read_tensors(self, partition: int, from_start: bool = False) -> Iterator[tuple[Tensors, Tensor]]:
        """The tensors of an upload but the running statistics, each (m,); less what the client was sent, if asked."""
        upload = self._upload_files.read(partition)
        for part in self._parts:
            if part not in upload:
                continue
            weights = weights_of(upload, part)
            start = self._find_start(partition, part) if from_start and part not in self._are_changes else None
            for name, tensor in weights.tensors.items():
                if not name.endswith(STATISTICS):
                    yield (part, name), (tensor if start is None else tensor - start.tensors[name]).reshape(-1)

    def _find_far(self, changes: Mapping[int, Mapping[Tensors, Length]], ratio: float) -> dict[int, str]:
        problems: dict[int, str] = {}
        sizes = {part: _median_norm(changes, part) for part, _ in next(iter(changes.values()))}
        for tensor in next(iter(changes.values())):
            lengths = {partition: measured[tensor] for partition, measured in changes.items()}
            usual = median(length.change or 0.0 for length in lengths.values())
            norm = 0.0 if tensor[1] == "" else median(length.norm for length in lengths.values())
            least = 0.0 if tensor[1] == "" else LEAST * sizes[tensor[0]]
            allowed = max(ratio * usual, SMALL * norm, least)
            if not allowed > 0:
                continue
            for partition, (_, change) in lengths.items():
                change = change or 0.0
                if change > allowed:
                    problems.setdefault(partition, _describe_problem(tensor, change, usual, ratio))
                elif partition not in problems and usual > 0:
                    self.times[partition] = max(self.times.get(partition, 0.0), change / usual)
        for partition in problems:
            self.times.pop(partition, None)
        return problems

    def _compare_with_others(self, members: Mapping[int, Measured]) -> tuple[Tensor, Tensor]:
        """Cosines of each change with the mean direction of the others', and the lengths of these means; (n,) each."""
        parts = [part for part in self._parts if part not in WHOLE]
        squares = [
            sum((length.change or 0.0) ** 2 for (part, _), length in measured.items() if part in parts)
            for measured in members.values()
        ]
        norms = torch.tensor(squares, dtype=torch.float64).sqrt()
        scale, moved = torch.where(norms > 0, 1 / norms, 0.0), (norms > 0).double()
        totals: dict[Tensors, Tensor] = {}
        for share, partition in zip(scale.tolist(), members, strict=True):
            for tensor, values in self._read_tensors(partition, from_start=True):
                if tensor[0] in parts:
                    totals[tensor] = totals[tensor].add_(values, alpha=share) if tensor in totals else share * values
        products = torch.zeros_like(scale)
        for index, partition in enumerate(members):
            for tensor, values in self._read_tensors(partition, from_start=True):
                if tensor[0] in parts:
                    products[index] += scale[index] * float(values @ totals[tensor])
        square = sum(float(total @ total) for total in totals.values())
        norms_of_others = (square - 2 * products + moved).clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        return (products - moved) / norms_of_others, norms_of_others / (len(norms) - 1)


def _are_measured(members: Mapping[int, Measured]) -> bool:
    return all(length.change is not None for measured in members.values() for length in measured.values())


def _median_norm(changes: Mapping[int, Mapping[Tensors, Length]], part: str) -> float:
    """Of a whole part of weights, the median over uploads."""
    return median(
        sum(length.norm**2 for (other, _), length in measured.items() if other == part) ** 0.5
        for measured in changes.values()
    )


def _describe_problem(tensor: Tensors, change: float, usual: float, ratio: float) -> str:
    part, name = tensor
    what = f"its tensor `{name}` has changed by {change:.3g}" if name else f"its {part} is {change:.3g} long"
    usually = "which most of a round's uploads leave as it is"
    if usual > 0:
        usually = f"{change / usual:.3g} times the usual {usual:.3g} of a round's uploads"
    return f"upload dropped: {what}, {usually} (`max-norm-ratio` is {ratio:g})"
