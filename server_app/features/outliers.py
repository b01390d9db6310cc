"""Uploads that do not fit beside the others: too long, pointing away, or of a sudden longer than the last. A mean has
no defence of its own against one client among many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from protosphere.core.client_names import client_word
from protosphere.core.seeds import limited_threads
from protosphere.prototypes.prototype_set import ClassVectors, PrototypeSet
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Aggregation, Feature, Federation
from protosphere.server_app.features.weight_changes import AWAY_COSINE, FEW, Changes
from protosphere.strategies import Run
from protosphere.wire.payloads import Instruction, Payload, class_vectors, mean_norm

REMEMBERED = 5  # rounds
AWAY_ROUNDS = 3  # in a row
# With 0 for this and for AWAY_COSINE, ProtoNorm's first rounds accuse two to six honest clients of ten, whose features
# have not turned towards the new targets yet; with these none, of two seeds.
AGREEMENT = 0.5  # length of the mean of the others' directions
RISE = 3.0  # of the mean norm, from one round to the next
# Of the usual length among clients of one model: honest ones have stayed below 2.2 with label distributions at
# Dirichlet 0.05 to 1 and with numbers of samples as different as 1:100
# (docs/studies/attacks_on_weights.md at commit b07b742).
LONG = 5.0


class OutlierCheck(Feature):
    """Drops uploads that are far beyond the others', and warns of clients that stand out."""

    stored_as = "outliers"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._outliers = Outliers()
        self._changes: Changes
        self._vectors: dict[int, ClassVectors] = {}  # of uploads that wait in files

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self._changes = Changes(self.run.exchange, federation.upload_files)

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        self._changes.sent[partition] = instruction.payload
        return instruction

    def set_aside(self, partition: int, payload: Payload) -> None:
        self._changes.measure(partition, payload)
        vectors = class_vectors(payload)
        if vectors is not None:
            self._vectors[partition] = vectors

    def select(self, replies: Sequence[Reply]) -> Sequence[Reply]:
        ratio, half = self.settings.max_norm_ratio, self.federation.half
        vectors = self._collect_vectors(replies)
        replies = self._outliers.without_long(replies, vectors, self.federation.units, ratio, 2 * half.target_norm)
        with limited_threads(1):
            return self._changes.without_far(replies, half.group, ratio)

    def review(self, replies: Sequence[Reply]) -> Sequence[str]:
        return self._outliers.alone(replies)

    def aggregated(self, aggregation: Aggregation) -> Sequence[str]:
        half, identities = self.federation.half, self.federation.identities
        with limited_threads(1):
            against = self._changes.against_others(aggregation.replies, half.group)
        vectors = self._collect_vectors(aggregation.replies)
        for partition, upload in aggregation.uploads.items():
            upload_vectors = class_vectors(upload)
            if upload_vectors is not None:
                vectors[partition] = upload_vectors
        self._vectors, self._changes.lengths = {}, {}
        return self._outliers.warnings(
            vectors,
            against,
            self._changes.times,
            {partition: identity.model for partition, identity in identities.items()},
            self.federation.units,
            aggregation.norm,
            half.scales[0] * (mean_norm(aggregation.targets) or 0.0),
        )

    def state(self) -> dict[str, Any]:
        return self._outliers.as_json()

    def load(self, stored: Any, tensors: Mapping[str, Tensor]) -> None:
        self._outliers = Outliers() if stored is None else Outliers.from_json(stored)

    def _collect_vectors(self, replies: Sequence[Reply]) -> dict[int, ClassVectors]:
        """The class vectors of each upload that has some, also of those that wait in files."""
        vectors_by_partition: dict[int, ClassVectors] = {}
        for reply in replies:
            payload = reply.report.payload if reply.report else None
            vectors = class_vectors(payload)
            if reply.waits:
                vectors = self._vectors.get(reply.partition)
            if vectors is not None:
                vectors_by_partition[reply.partition] = vectors
        return vectors_by_partition


@dataclass
class Outliers:
    """What is remembered of the last rounds; it is part of the checkpoint, so that a resumed run judges alike.

    Attributes:
        lengths: client -> norm of the longest vector of its newest upload, in its unit.
        norms: of each round the mean norm of the prototypes.
        away: client -> rounds in a row, of those in which it uploaded, in which its prototypes, or the change of its
            weights, pointed away.
        long: client -> rounds in a row in which its prototypes were long beside those of its model.
        farthest: of the last round with uploads the client whose upload was farthest from the usual, and how many times
            as far.
    """

    lengths: dict[int, float] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    away: dict[int, int] = field(default_factory=dict)
    long: dict[int, int] = field(default_factory=dict)
    farthest: tuple[int, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        by_client = {name: _convert_keys(getattr(self, name), str) for name in ("lengths", "away", "long")}
        return {"norms": self.norms, "farthest": self.farthest, **by_client}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Outliers":
        """Inverse of `as_json`."""
        farthest = stored.get("farthest")
        return cls(
            _convert_keys(stored["lengths"], int),
            stored["norms"],
            _convert_keys(stored["away"], int),
            _convert_keys(stored.get("long", {}), int),
            (farthest[0], farthest[1]) if farthest else None,
        )

    def without_long(
        self,
        replies: Sequence[Reply],
        vectors: Mapping[int, ClassVectors],
        units: Mapping[int, float],
        ratio: float,
        allowed: float,
    ) -> list[Reply]:
        """Drop the uploads with a vector longer than `ratio` times the median over all clients that have uploaded, of
        each the newest; where those are fewer than three nobody can say which is the odd one, and none is dropped.

        Args:
            vectors: by partition, the class vectors of its upload.
            units: by partition, what its norms are measured in (1 where it is missing).
            allowed: a norm that is never too long: twice that of the targets, where the method itself sets it. A
                client with many rows may follow them in the round in which most have hardly begun to.
        """
        lengths = {
            partition: _measure_longest(upload) / units.get(partition, 1.0) for partition, upload in vectors.items()
        }
        # of every client the newest, dropped ones too: where all features grow, the measure grows with them
        self.lengths |= lengths
        usual = median(self.lengths.values()) if len(self.lengths) >= FEW else 0.0
        limit = max(ratio * usual, allowed)
        # zero prototypes, as of dead features, are no measure for others
        long_partitions = {partition for partition, norm in lengths.items() if usual > 0 and norm > limit}
        return [
            _drop_upload(reply, lengths[reply.partition], usual, ratio) if reply.partition in long_partitions else reply
            for reply in replies
        ]

    def warnings(
        self,
        vectors: Mapping[int, ClassVectors],
        against: Mapping[int, bool],
        changes: Mapping[int, float],
        models: Mapping[int, str],
        units: Mapping[int, float],
        norm: float | None,
        targets: float,
    ) -> list[str]:
        """Sentences on a mean norm that has risen, and on clients that point away or are long; remembers the round.

        Args:
            vectors: by partition, the class vectors of its upload.
            against: by partition, whether the change of its weights points away from the others'.
            changes: by partition, how many times as far as is usual its weights have gone.
            models: by partition, the name of its model.
            norm: the mean norm of the prototypes, None where the method does not watch it.
            targets: that of the targets that they were trained towards, 0 for none.
        """
        lengths = {
            partition: _measure_longest(upload) / units.get(partition, 1.0) for partition, upload in vectors.items()
        }
        times = _compare_lengths(lengths, models)
        farthest = {**times, **changes}
        most = max(farthest, key=lambda partition: farthest[partition], default=None)
        self.farthest = None if most is None else (most, farthest[most])
        long_partitions = [partition for partition, share in times.items() if share > LONG]
        for partition in times:
            self.long[partition] = self.long.get(partition, 0) + 1 if partition in long_partitions else 0
        sentences = [
            f"the prototypes of {client_word(partition)} are {times[partition]:.3g} times as long as is usual for its "
            "model, and move a mean by as much: look at its labels, its data and its software, leave it out or lower "
            "`max-norm-ratio`"
            for partition in long_partitions
            if self.long[partition] % AWAY_ROUNDS == 1
        ]
        # a long client turns the target that the others follow, so that away from it may be who is right
        away_shares = {} if long_partitions else _measure_away_shares(vectors)
        return [*self._warn_of_rise(lengths, norm, targets), *sentences, *self._warn_of_direction(away_shares, against)]

    def alone(self, replies: Sequence[Reply]) -> list[str]:
        """Where most uploads of a round cannot be used: who stood out in the round before, if anybody did."""
        trained_replies = [
            reply for reply in replies if reply.trains and (reply.valid or reply.dropped or reply.report)
        ]
        unusable_replies = [reply for reply in trained_replies if not reply.valid]
        if self.farthest is None or self.farthest[1] <= RISE or 2 * len(unusable_replies) <= len(trained_replies):
            return []
        partition, times = self.farthest
        return [
            f"{len(unusable_replies)} of {len(trained_replies)} clients' uploads cannot be used. In the last "
            f"round that could, {client_word(partition)} was {times:.3g} times as far from the others as is usual: "
            "they may follow what it sent. Look at its data and its software, and start again without it"
        ]

    def _warn_of_rise(self, lengths: Mapping[int, float], norm: float | None, targets: float) -> list[str]:
        if norm is None:
            return []
        before = median(self.norms) if self.norms else 0.0
        self.norms = [*self.norms, norm][-REMEMBERED:]
        if not before or norm <= RISE * max(before, targets):
            return []
        client = max(lengths, key=lambda partition: lengths[partition])
        return [
            f"the mean norm of the prototypes has risen from {before:.3g} to {norm:.3g}, and those of "
            f"{client_word(client)} are the longest ({lengths[client]:.3g}, the median is "
            f"{median(lengths.values()):.3g}): if they are wrong, leave that client out "
            "or lower `max-norm-ratio`; if all have risen, lower `learning-rate`"
        ]

    def _warn_of_direction(self, shares: Mapping[int, float], against: Mapping[int, bool]) -> list[str]:
        by_vectors = {partition: share > 0.5 for partition, share in shares.items()}
        away_by_partition = {
            partition: by_vectors.get(partition) or against.get(partition, False)
            for partition in {**by_vectors, **against}
        }
        for partition, is_away in away_by_partition.items():
            self.away[partition] = self.away.get(partition, 0) + 1 if is_away else 0
        sentences = []
        for partition, is_away in sorted(away_by_partition.items()):
            if is_away and self.away[partition] % AWAY_ROUNDS == 0:
                what = (
                    f"the prototypes of {client_word(partition)} have pointed away from the others' for most of "
                    "its classes"
                    if by_vectors.get(partition)
                    else f"the weights of {client_word(partition)} have changed against the others'"
                )
                times = self.away[partition]
                sentences.append(
                    f"{what} {times} times in a row: look at its labels, its data and its software, or leave it out"
                )
        return sentences


def _compare_lengths(lengths: Mapping[int, float], models: Mapping[int, str]) -> dict[int, float]:
    """How many times as long as the median of the clients that say they have the same model, where these are three: by
    how much features differ that are made alike."""
    by_model: dict[str | None, list[float]] = {}
    for partition, length in lengths.items():
        by_model.setdefault(models.get(partition), []).append(length)
    usual = {model: median(peers) for model, peers in by_model.items() if len(peers) >= FEW}
    return {
        partition: length / usual[model]
        for partition, length in lengths.items()
        if usual.get(model := models.get(partition), 0.0) > 0
    }


def _convert_keys(values: Mapping[Any, Any], kind: Callable[[Any], Any]) -> dict[Any, Any]:
    return {kind(key): value for key, value in sorted(values.items())}


def _measure_longest(vectors: ClassVectors) -> float:
    """The longest row's length; 0 without rows."""
    return float(vectors.lengths().max()) if len(vectors) else 0.0


def _drop_upload(reply: Reply, norm: float, usual: float, ratio: float) -> Reply:
    return reply.without_upload(
        f"upload dropped: its longest vector has norm {norm:.3g}, {norm / usual:.3g} times the usual {usual:.3g} of a "
        f"round's uploads (`max-norm-ratio` is {ratio:g})"
    )


def _measure_away_shares(vectors: Mapping[int, ClassVectors]) -> dict[int, float]:
    """For each client the share of its classes whose prototype points clearly away from the mean *direction* of the
    other holders', where these agree: directions, since one long vector would turn a mean of vectors, and honest
    clients away from it. Of the classes that three clients hold at least; a client without any is missing."""
    sets = {partition: prototypes for partition, prototypes in vectors.items() if isinstance(prototypes, PrototypeSet)}
    if not sets:
        return {}
    owner = torch.tensor([partition for partition, prototypes in sets.items() for _ in range(len(prototypes))])
    labels = torch.cat([prototypes.labels for prototypes in sets.values()])
    directions = torch.nn.functional.normalize(
        torch.cat([prototypes.vectors.double() for prototypes in sets.values()]), dim=1
    )
    classes = int(labels.max()) + 1 if len(labels) else 0
    sums = directions.new_zeros(classes, directions.shape[1]).index_add_(0, labels, directions)
    holders = torch.bincount(labels, minlength=classes)[labels]
    is_common = holders >= FEW
    mean_of_others = (sums[labels] - directions) / (holders - 1).clamp(min=1).unsqueeze(1)
    agreement = mean_of_others.norm(dim=1)
    negative: Tensor = ((directions * mean_of_others).sum(dim=1) < AWAY_COSINE * agreement) & (agreement >= AGREEMENT)
    return {
        partition: float(negative[rows].double().mean())
        for partition in sets
        if bool((rows := (owner == partition) & is_common).any())
    }
