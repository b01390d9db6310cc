"""Who has which download: of a method that sends `once`, a client gets one again only when it is another, or lost."""

from collections.abc import Iterable, Mapping
from typing import Any

from protosphere.record.round import Reply


class Holding:
    """Of one run.

    Attributes:
        made: the round whose uploads made the downloads; 0 before any.
        held: partition -> the round that made what it has.
    """

    def __init__(self, made: int = 0, held: Mapping[int, int] | None = None):
        self.made = made
        self.held = dict(held or {})
        self._offered: dict[int, int] = {}

    def offer(self, partition: int, there: bool) -> tuple[int, bool]:
        """Before a message: the round that made its download, 0 where there is none, and whether the client has it."""
        made = self._offered[partition] = self.made if there else 0
        return made, there and self.held.get(partition) == made

    def hear(self, replies: Iterable[Reply]) -> None:
        """After a round: who answered well has what was offered; who did not may have lost it, and gets it again."""
        for reply in replies:
            if reply.report is None or reply.problem:
                self.held.pop(reply.partition, None)
            elif made := self._offered.get(reply.partition):
                self.held[reply.partition] = made

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"made": self.made, "held": {str(partition): made for partition, made in sorted(self.held.items())}}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Holding":
        """The inverse; of nothing, all is sent anew."""
        held = {int(partition): made for partition, made in stored.get("held", {}).items()}
        return cls(int(stored.get("made", 0)), held)
