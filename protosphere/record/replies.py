"""The clients' replies in a round, and their sizes."""

from dataclasses import dataclass, field

from torch import Tensor

from protosphere.record.confusion import Triples
from protosphere.wire.payloads import Report


@dataclass(frozen=True)
class Bytes:
    """The size of one message, or a sum of sizes: the payload's values, and all records as Flower serialises them."""

    payload: int = 0
    wire: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.payload + other.payload, self.wire + other.wire)


@dataclass(frozen=True)
class Reply:
    """The reply of one client."""

    partition: int
    trains: bool  # whether it was asked to train; otherwise it was asked to evaluate
    report: Report | None = None  # the decoded reply with its checked upload; None if it is unusable
    problem: str = ""  # why the reply or its upload was dropped
    dropped: bool = False  # whether its upload was refused, or is missing although one was due
    size: Bytes = field(default_factory=Bytes)
    ensemble: Tensor | None = None  # its checked class probabilities for the shared test set, (n, K) float16
    confusion: Triples = field(default_factory=list)  # its checked confusion matrix
    refused: str = ""  # why an optional item was dropped, which leaves the rest of the reply valid

    @property
    def problems(self) -> str:
        """Everything that was wrong with it, in words."""
        return "; ".join(filter(None, (self.problem, self.refused)))

    @property
    def valid(self) -> bool:
        """Whether the reply counts towards `min-replies`."""
        return self.report is not None and not self.problem
