"""What a round leaves of each client: its reply, and how many bytes crossed."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

from torch import Tensor

from protosphere.prototypes.weights import Length
from protosphere.wire.payloads import ClassVectors, Report


class RunError(RuntimeError):
    """The run cannot go on; the message is one sentence for a person."""


@dataclass(frozen=True)
class Bytes:
    """Sizes of one message or a sum of them: prototype values alone, and the serialised records.

    `evaluation` is the part of `wire` that the evaluation's figures take; `ensemble`, the answers for the shared test
    set, and `confusion`, what was taken for what, are no parts of it.
    """

    payload: int = 0
    wire: int = 0
    evaluation: int = 0
    ensemble: int = 0
    confusion: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Reply:
    """What one client answered.

    Attributes:
        trains: whether it was asked to train (else to evaluate only).
        report: the decoded reply with its checked upload; None when the whole reply is unusable.
        problem: why the reply, or its upload, was dropped; empty when all is well.
        dropped: whether its upload was refused, or was missing where one was due.
        probabilities: its checked answers for the ensemble, (n, K) float16.
        refused: why those were dropped; that spoils nothing else of the reply.
        waits: of an upload that waits in a file, the lengths of its weights: of those that come down again, by part and
            tensor. vectors: its class vectors.
        blames: whether it says that its method, somebody's own, has failed.
    """

    partition: int
    trains: bool
    report: Report | None = None
    problem: str = ""
    dropped: bool = False
    size: Bytes = field(default_factory=Bytes)
    probabilities: Tensor | None = None
    refused: str = ""
    waits: Mapping[tuple[str, str], Length] | None = None
    vectors: ClassVectors | None = None
    blames: bool = False

    @property
    def problems(self) -> str:
        """All that was wrong with it, in words."""
        return "; ".join(filter(None, (self.problem, self.refused)))

    @property
    def valid(self) -> bool:
        """Whether it counts towards `min-replies`."""
        return self.report is not None and not self.problem
