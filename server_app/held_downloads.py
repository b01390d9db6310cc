"""Who has which download: of a method that sends `once`, a client gets one again only when it is another, or lost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Aggregation, Feature
from protosphere.strategies import Run
from protosphere.wire.payloads import Instruction


class DownloadOnce(Feature):
    """Of one run.

    Attributes:
        made: the round whose uploads made the downloads; 0 before any.
        received: partition -> the round that made what it has.
    """

    stored_as = "holding"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self.made = 0
        self.received: dict[int, int] = {}
        self._offered_rounds: dict[int, int] = {}

    @staticmethod
    def applies(run: Run) -> bool:
        return run.exchange.once

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        """With the round that made the download, and without one that the client has."""
        sends = instruction.payload is not None
        source_round = self._offered_rounds[partition] = self.made if sends else 0
        if sends and self.received.get(partition) == source_round:
            return replace(instruction, payload=None, made=source_round)
        return replace(instruction, made=source_round)

    def review(self, replies: Sequence[Reply]) -> Sequence[str]:
        """Who answered well has what was offered; who did not may have lost it, and gets it again."""
        for reply in replies:
            if reply.report is None or reply.problem:
                self.received.pop(reply.partition, None)
            elif source_round := self._offered_rounds.get(reply.partition):
                self.received[reply.partition] = source_round
        return ()

    def aggregated(self, aggregation: Aggregation) -> Sequence[str]:
        """Downloads that are made anew are another."""
        if aggregation.outcome.downloads:
            self.made = aggregation.round
        return ()

    def state(self) -> dict[str, Any]:
        return {
            "made": self.made,
            "held": {str(partition): source_round for partition, source_round in sorted(self.received.items())},
        }

    def load(self, stored: Any, tensors: Mapping[str, Tensor]) -> None:
        """Of nothing, all is sent anew."""
        stored = stored or {}
        self.made = int(stored.get("made", 0))
        self.received = {int(partition): source_round for partition, source_round in stored.get("held", {}).items()}
