"""What clients send, changed on its way to the server."""

from collections.abc import Callable
from typing import Any

from protosphere.launch.grid import LocalGrid


def tampered(change: Callable[..., Any], of: int | None = None) -> type[LocalGrid]:
    """A grid that makes `change(records, partition, round)` to all that arrives, or to what one client sends; the round
    of who it says it is is 0."""

    class Tampered(LocalGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for reply in filter(lambda reply: reply.has_content(), replies):
                said = reply.content["config"]
                if of is None or said["partition"] == of:
                    change(reply.content, said["partition"], said.get("round", 0))
            return replies

    return Tampered
