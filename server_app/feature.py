"""What a feature of a run is: something that the rounds can have or lack, in one file of features/.

The rounds call each of its functions at its time, in the order of the registry (features/__init__.py), and know no
feature by name. In the base class every hook is a no-op.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from protosphere.core.settings import Settings
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.roster import Roster
from protosphere.strategies import Run
from protosphere.strategies.contract import Outcome, ServerHalf
from protosphere.wire.checks import RecordType
from protosphere.wire.claims import Believed
from protosphere.wire.codec import Codec
from protosphere.wire.payloads import Identity, Instruction, Payload


@dataclass(frozen=True)
class Federation:
    """What is known when the clients are.

    Attributes:
        identities: partition -> who the client said it is. partitions: how many there are, of those left out, too.
        believed: the clients with as many samples as they are believed to have.
        half: the method's server half.
    """

    identities: Mapping[int, Identity]
    partitions: int
    codec: Codec
    believed: Believed
    half: ServerHalf


@dataclass(frozen=True)
class Aggregation:
    """A round's uploads and what the method made of them.

    Attributes:
        uploads: partition -> upload.
        downloads: of the next round.
        norm: the mean norm of the prototypes; None where the method does not tell.
    """

    round: int
    uploads: Mapping[int, Payload]
    downloads: Mapping[int, Payload]
    outcome: Outcome
    norm: float | None


class Feature:
    """One feature of one run.

    Attributes:
        name: of the records in which it asks clients and these answer, and of their bytes; "" where it asks nothing.
        record_type: of the answers.
        stored_as, tensors_as: under which names its state and its tensors stand in a checkpoint; "" where it has none.
        stop_reason: why the run is to end before its last round; "" while it goes on.
    """

    name = ""
    record_type: RecordType = ArrayRecord
    stored_as = ""
    tensors_as = ""
    stop_reason = ""

    def __init__(self, run: Run, folder: RunFolder):
        self.run = run
        self.settings = run.settings
        self.folder = folder
        self.federation: Federation

    @staticmethod
    def applies(run: Run) -> bool:
        """Whether the run has it, by its settings and its method."""
        return True

    # --- the start ---

    def gathered(self, roster: Roster, last_round: int) -> None:
        """Whoever is there has answered; nothing is made of the clients yet.

        Args:
            last_round: of a resumed run the last that is finished, else 0.
        """

    @staticmethod
    def refuse(settings: Settings) -> None:
        """Before the run has a folder.

        Raises:
            SettingError: the feature cannot work on this machine.
        """

    def start(self, federation: Federation) -> None:
        """The clients are known.

        Raises:
            SettingError: it cannot work with these.
        """
        self.federation = federation

    def recall(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """A run is resumed: the lines of its rounds so far."""

    def opening(self) -> Sequence[str]:
        """What to say before round 1."""
        return ()

    def during(self) -> AbstractContextManager[None]:
        """Entered when the clients are known, left when the run has ended, whichever way."""
        return nullcontext()

    # --- a round, in this order ---

    def before_round(self, number: int) -> None:
        """The roster is up to date; nothing is sent yet."""

    def last_evaluation(self, number: int) -> None:
        """The messages that follow are those of the evaluation that ends the run."""

    def asks_everyone(self, number: int) -> bool:
        """Whether it asks all clients, also those whom this round asks nothing else."""
        return False

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        """A client's instruction, with what is asked beside."""
        return instruction

    def check(self, reply: Reply, records: RecordDict, identity: Identity | None) -> Reply:
        """A client's reply, its report checked already, with the checked answer in `answers`. What cannot be used is
        dropped by itself, with the reason in `refused`."""
        return reply

    def review(self, replies: Sequence[Reply]) -> Sequence[str]:
        """The round has closed: warnings on the replies."""
        return ()

    def uploads(self, uploads: Mapping[int, Payload]) -> Mapping[int, Payload]:
        """What the method is to aggregate."""
        return uploads

    def aggregated(self, aggregation: Aggregation) -> Sequence[str]:
        """The method has made its downloads: warnings on them."""
        return ()

    def figures(self, of_round: int, replies: Sequence[Reply]) -> Mapping[str, Any]:
        """What stands in the round's line, of the models that `of_round` left."""
        return {}

    def leave(self) -> None:
        """The round's line is written, its checkpoint is not: what it leaves in the folder."""

    def after_round(self, line: Mapping[str, Any]) -> None:
        """The round is finished, and its checkpoint is written."""

    # --- the checkpoint ---

    def state(self) -> Any:
        """What a resumed run must know, as JSON has it."""
        return None

    def tensors(self) -> Mapping[str, Tensor]:
        """The same, of tensors."""
        return {}

    def load(self, stored: Any, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `state` and `tensors`; `stored` is None where the checkpoint is of a run without the feature."""
