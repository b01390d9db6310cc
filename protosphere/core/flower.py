"""Everything that depends on more of Flower than its public modules. Check it when Flower releases a minor version.

Flower is imported on demand, so that the scripts of `deploy/` can use this file cheaply.
"""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from flwr.app import Message
    from flwr.serverapp import Grid

# the newest tested minor version; pyproject.toml has the same bounds
OLDEST, NEWEST = (1, 39), (1, 42)
# the first version whose SuperNodes use HTTP
FIRST_OVER_HTTP = (1, 40)


class UntriedFlowerError(RuntimeError):
    """The installed Flower version is not one that was tested; the message is one sentence for the user."""


def fleet_transport() -> str:
    """The protocol of the installed Flower's SuperNodes: `grpc` or `http`. Raises UntriedFlowerError."""
    first, second = (int(number) for number in minor_name().split("."))
    if not OLDEST <= (first, second) <= NEWEST:
        known_versions = " to ".join(".".join(map(str, pair)) for pair in (OLDEST, NEWEST))
        raise UntriedFlowerError(
            f"Flower {version('flwr')} was not tested with this version of Protosphere, which supports "
            f"{known_versions}; install one of these."
        )
    return "http" if (first, second) >= FIRST_OVER_HTTP else "grpc"


def minor_name() -> str:
    """The installed Flower version without its patch number, as `1.42`."""
    return ".".join(version("flwr").split(".")[:2])


# --- the SuperLink's database -----------------------------------------------------------------------------------

# Tables with message content and references to it, children before parents; `message` exists from 1.41 on. None is
# needed after the SuperLink, whose runs end with it.
TABLES_OF_MESSAGES = (
    "message_res",
    "message_ins",
    "message",
    "task_message",
    "object_push_session_pending",
    "object_push_session_roots",
    "object_push_sessions",
    "run_objects",
    "object_children",
    "objects",
)


# --- messages and grids -----------------------------------------------------------------------------------------

# Codes of errors in place of a reply: a simulation worker died; the ClientApp raised. A client on its own machine may
# send either.
WORKER_DIED, APP_RAISED = 0, 2
MOST_IDS = 1000  # message ids per request for replies, because a server limits its size
SERVER_NODE = 1  # the node id of every ServerApp


def take_identity(run_id: int, task_id: int) -> None:
    """Give this process the identity of a run's ServerApp, without which no message can be created."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE, task_id


def stamp(message: "Message", message_id: str) -> None:
    """Give a message its id, as Flower's grids do."""
    message.metadata.__dict__["_message_id"] = message_id


# --- what a grid brings -----------------------------------------------------------------------------------------


def over_ray(grid: "Grid") -> bool:
    """Whether the nodes are Ray actors, which Flower reaches without a network."""
    if getattr(grid, "simulated", False):
        return False
    # importing it takes 1.4 seconds; skip it unless it is already loaded
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def is_simulated(grid: "Grid") -> bool:
    """Whether the nodes are workers that are not restarted when they die: in this process, or of Ray."""
    return getattr(grid, "simulated", False) or over_ray(grid)


def in_turn(grid: "Grid") -> bool:
    """Whether messages are answered one after the other, as in the in-process grid, so that none can be late."""
    return getattr(grid, "in_turn", False)


def bundle_of(app: "Path") -> bytes:
    """The files that `flwr run` sends for the app in this folder."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(app)


def call_when_stopped(grid: "Grid", handler: Callable[[], None]) -> None:
    """Call `handler` when Flower ends this process after `flwr stop`, which raises no exception in a simulation."""
    if not getattr(grid, "simulated", False):
        from flwr.supercore.exit import add_exit_handler

        add_exit_handler(handler, run_before_force_exit=True)


def pulled(grid: "Grid", message_ids: Collection[str]) -> "Iterator[tuple[str, Message | str]]":
    """The replies that have arrived: the id of the message that each answers, and the reply, or why it is unreadable.

    Flower builds a reply from objects that a client wrote, and an error would cost all other replies of the request.
    So all replies are requested at once, but Flower builds them one at a time. Over gRPC (1.39), each is requested.
    Raises httpx.HTTPError if the SuperLink does not answer.
    """
    if is_simulated(grid):
        for message in list(grid.pull_messages(message_ids)):
            yield message.metadata.reply_to_message_id, message
        return
    import httpx

    # a grid over the network has a client, which Flower's type of all grids does not know
    network_grid: Any = grid
    for message_id, client in _arrivals(grid, list(message_ids)):
        original_client = getattr(grid, "_client", None)
        replies: list[Message | str] = []
        try:
            if client is not None:
                network_grid._client = client
            replies += grid.pull_messages([message_id])
        except httpx.HTTPError:
            raise
        # for malicious bytes, Flower, protobuf and NumPy raise a dozen kinds of exceptions
        except Exception as error:
            replies = [f"its reply is malformed: Flower cannot read it ({type(error).__name__})"]
        finally:
            if client is not None:
                network_grid._client = original_client
        for reply in replies:
            # the client wrote the id that its reply refers to; a single reply is to the requested one
            if isinstance(reply, str) or len(replies) == 1 or reply.metadata.reply_to_message_id == message_id:
                yield message_id, reply


def _arrivals(grid: "Grid", message_ids: list[str]) -> "Iterator[tuple[str, _FetchedReply | None]]":
    """Messages that may have been answered: the id, and a client that holds the reply, or None to request it."""
    # a property that connects if necessary
    client = getattr(grid, "_runtime_client", None)
    if client is None:
        for message_id in message_ids:
            yield message_id, None
        return
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

    for start in range(0, len(message_ids), MOST_IDS):
        ids = message_ids[start : start + MOST_IDS]
        answer = client.PullMessages(PullAppMessagesRequest(message_ids=ids))
        for reply, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            message_id = reply.metadata.reply_to_message_id
            if message_id in ids:
                single = PullAppMessagesResponse(messages_list=[reply], message_object_trees=[tree])
                yield message_id, _FetchedReply(client, single)


class _FetchedReply:
    """A grid's client whose `PullMessages` returns a reply that was fetched before."""

    def __init__(self, client: Any, answer: Any):
        self._client, self._answer = client, answer

    # the name of the method in Flower's client
    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        """Return the fetched reply."""
        return self._answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


# --- what `flwr` and the SuperLink say --------------------------------------------------------------------------

COMPLETED = "finished:completed"
# no telemetry, no update check, and no line breaks: `flwr` frames errors in a box of this width
QUIET = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0", "COLUMNS": "500"}
NO_INSTALLATION = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}


def parse_answer(text: str) -> dict[str, Any]:
    """The JSON object that a `flwr` command printed; empty if it printed none."""
    with suppress(ValueError):
        answer = json.loads(text)
        return answer if isinstance(answer, dict) else {}
    return {}


def submitted_run(answer: str) -> str:
    """The id of the run that `flwr run` submitted; "" if it was refused."""
    content = parse_answer(answer)
    return str(content.get("run-id", "")) if content.get("success") else ""


def has_succeeded(answer: str) -> bool:
    """Whether a `flwr` command succeeded."""
    return bool(parse_answer(answer).get("success"))


def run_status(answer: str) -> tuple[str, str]:
    """A run's status and its details, from `flwr ls --run-id`; `unknown` if there is none."""
    # the output changes with Flower's versions
    with suppress(KeyError, IndexError, TypeError):
        run = parse_answer(answer)["runs"][0]
        return run["status"], "" if run["status-details"] == "N/A" else run["status-details"]
    return "unknown", ""


def has_finished(status: str) -> bool:
    """Whether a run's status is final."""
    return status.startswith("finished")


def refusal(answer: str) -> str:
    """Why `flwr` refused: the end of the message in its JSON output, or the text in its box."""
    message = parse_answer(answer).get("error-message")
    if message is not None:
        lines = str(message).strip().rpartition("\n\n")[2].split()
    else:
        lines = [line.strip("│ \n") for line in answer.splitlines() if line.startswith("│")]
    return " ".join(filter(None, lines)).rstrip(".")


if __name__ == "__main__":
    try:
        print(fleet_transport())
    except UntriedFlowerError as error:
        raise SystemExit(str(error)) from None
