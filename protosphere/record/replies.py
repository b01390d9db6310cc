"""What clients answer in a round: their replies, and how many bytes crossed."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from protosphere.wire.confusion import Triples
from protosphere.wire.payloads import Report


@dataclass(frozen=True)
class Bytes:
    """Sizes of one message or a sum of them: the values of its payload alone, and all records as Flower serialises
    them."""

    payload: int = 0
    wire: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.payload + other.payload, self.wire + other.wire)


@dataclass(frozen=True)
class Reply:
    """What one client answered.

    Attributes:
        trains: whether it was asked to train (else to evaluate only).
        report: the decoded reply with its checked upload; None when the whole reply is unusable.
        problem: why the reply, or its upload, was dropped; empty when all is well.
        dropped: whether its upload was refused, or was missing where one was due.
        ensemble: its checked class probabilities of the shared test set, (n, K) float16.
        confusion: its checked confusion matrix as (true class, predicted class, samples).
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
    ensemble: Tensor | None = None
    confusion: Triples = field(default_factory=list)
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
