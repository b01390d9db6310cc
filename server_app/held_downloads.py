"""Which download each client holds: a method that sends `once` sends again only after a change or a loss."""

from collections.abc import Iterable, Mapping
from typing import Any

from protosphere.record.replies import Reply


class HeldDownloads:
    """The downloads that the clients of one run hold.

    Attributes:
        made: the round whose uploads made the newest downloads; 0 before the first.
        held: partition -> the round that made the client's download.
    """

    def __init__(self) -> None:
        self.made = 0
        self.held: dict[int, int] = {}

    def has_newest(self, partition: int) -> bool:
        """Whether a client holds the newest download, which then need not be sent."""
        return 0 < self.made == self.held.get(partition)

    def note_replies(self, replies: Iterable[Reply], offered: Iterable[int]) -> None:
        """A client with a valid reply holds what was offered; any other may have lost it, and gets it again.

        Args:
            offered: the partitions whose message contained or named the newest download.
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
