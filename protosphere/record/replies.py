"""What clients answer in a round: their replies, and how many bytes crossed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protosphere.wire.payloads import Report


@dataclass(frozen=True)
class Bytes:
    """Sizes of one message or a sum of them: prototype values alone, and the serialised records.

    `evaluation` is the part of `wire` that the evaluation's figures take; `features`, by feature what it asks and is
    answered, is no part of it.
    """

    payload: int = 0
    wire: int = 0
    evaluation: int = 0
    features: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "Bytes") -> "Bytes":
        features = dict(Counter(self.features) + Counter(other.features))
        payload, wire = self.payload + other.payload, self.wire + other.wire
        return Bytes(payload, wire, self.evaluation + other.evaluation, features)


@dataclass(frozen=True)
class Reply:
    """What one client answered.

    Attributes:
        trains: whether it was asked to train (else to evaluate only).
        report: the decoded reply with its checked upload; None when the whole reply is unusable.
        problem: why the reply, or its upload, was dropped; empty when all is well.
        dropped: whether its upload was refused, or was missing where one was due.
        answers: feature -> its checked answer to what that asked beside.
        refused: why something of it was dropped that spoils nothing else of the reply.
        false: whether it claims other samples than the client said it has; then nothing in it counts.
        blames: whether it says that its method, somebody's own, has failed.
    """

    partition: int
    trains: bool
    report: Report | None = None
    problem: str = ""
    dropped: bool = False
    size: Bytes = field(default_factory=Bytes)
    answers: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    false: bool = False
    blames: bool = False

    @property
    def problems(self) -> str:
        """All that was wrong with it, in words."""
        return "; ".join(filter(None, (self.problem, self.refused)))

    @property
    def valid(self) -> bool:
        """Whether it counts towards `min-replies`."""
        return self.report is not None and not self.problem

    def without_upload(self, problem: str) -> "Reply":
        """The same, its upload dropped for this reason."""
        report = None if self.report is None else replace(self.report, payload=None)
        return replace(self, report=report, problem=problem, dropped=True)

    def refusing(self, reason: str) -> "Reply":
        """The same, with one reason more why something of it was dropped."""
        return replace(self, refused="; ".join(filter(None, (self.refused, reason))))
