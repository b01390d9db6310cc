"""Who has which download: of a method that sends `once`, a client gets one again only when it is another, or lost."""

from collections.abc import Iterable, Mapping
from typing import Any

from protosphere.record.replies import Reply


class HeldDownloads:
    """Of one run.

    Attributes:
        made: the round whose uploads made the newest downloads; 0 before any.
        held: partition -> the round that made the download that the client holds.
    """

    def __init__(self) -> None:
        self.made = 0
        self.held: dict[int, int] = {}

    def has_newest(self, partition: int) -> bool:
        """Whether a client holds the newest download, so that it need not be sent."""
        return 0 < self.made == self.held.get(partition)

    def note_replies(self, replies: Iterable[Reply], offered: Iterable[int]) -> None:
        """Who answered well holds what was offered; who did not may have lost it, and gets it again.

        Args:
            offered: the partitions whose message brought the newest download, or named it.
        """
        partitions = {*offered}
        for reply in replies:
            if reply.report is None or reply.problem:
                self.held.pop(reply.partition, None)
            elif reply.partition in partitions and self.made:
                self.held[reply.partition] = self.made

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "made": self.made,
            "held": {str(partition): round_number for partition, round_number in sorted(self.held.items())},
        }

    def load(self, stored: Mapping[str, Any]) -> None:
        """Inverse of `as_json`."""
        self.made = int(stored["made"])
        self.held = {int(partition): round_number for partition, round_number in stored["held"].items()}
