"""What comes back from the clients, pulled so that nobody's spoilt message takes another's with it."""

from collections.abc import Collection, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from protosphere.core.flower import is_over_ray


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes are workers of this machine, which nobody starts again when they die: the in-process grid's, or
    Ray's, which Flower reaches without a network."""
    return getattr(grid, "simulated", False) or over_ray(grid)


def over_ray(grid: Grid) -> bool:
    """Whether the nodes are Ray's."""
    if getattr(grid, "simulated", False):
        return False
    return is_over_ray(grid)


def in_turn(grid: Grid) -> bool:
    """Whether every message is answered, each when its turn has come, so that nobody is late: the in-process grid's. A
    clock would make the figures depend on the machine, or on how long it was suspended."""
    return getattr(grid, "in_turn", False)


def pulled(grid: Grid, message_ids: Collection[str]) -> Iterator[tuple[str, Message | str]]:
    """The replies that have arrived: the id of the message that each answers, and the reply, or in words why it cannot
    be read.

    Over the network Flower builds each reply from objects that a client wrote, and raises where they are malformed;
    what else came with it would be lost. So there one is pulled at a time.

    Args:
        message_ids: may lose those that were given.

    Raises:
        httpx.HTTPError: the SuperLink itself cannot be asked.
    """
    if is_simulated(grid):
        for message in list(grid.pull_messages(message_ids)):
            yield message.metadata.reply_to_message_id, message
        return
    import httpx

    for message_id in list(message_ids):
        try:
            arrived = list(grid.pull_messages([message_id]))
            replies = [(message_id, reply) for reply in arrived if reply.metadata.reply_to_message_id == message_id]
            # which message it answers the client wrote itself: of a single reply we know it by what we asked for
            if len(arrived) == 1:
                replies = [(message_id, arrived[0])]
        except httpx.HTTPError:
            raise
        # Flower, protobuf and NumPy raise a dozen kinds for bytes that were made to harm
        except Exception as error:
            yield message_id, f"its reply is malformed: Flower cannot read it ({type(error).__name__})"
        else:
            yield from replies
