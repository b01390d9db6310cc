"""Everything that depends on Flower beyond its public modules (`flwr.app`, `flwr.serverapp`, `flwr.clientapp`): private
classes, error codes, the output of its commands, the tables of its database.

Check this file when Flower releases a minor version. It imports Flower on demand, so that the scripts of `deploy/` can
use it cheaply.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
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


def minor() -> tuple[int, int]:
    """The installed Flower version, as (1, 42).

    Raises:
        UntriedFlowerError: it is older or newer than the tested ones.
    """
    full_version = version("flwr")
    first, second, *_ = full_version.split(".")
    installed = int(first), int(second)
    if not OLDEST <= installed <= NEWEST:
        known_versions = " to ".join(".".join(map(str, pair)) for pair in (OLDEST, NEWEST))
        raise UntriedFlowerError(
            f"Flower {full_version} was not tested with this version of Protosphere, which supports {known_versions}; "
            "install one of these."
        )
    return installed


def minor_name() -> str:
    """The installed Flower version without its patch number, as `1.42`."""
    return ".".join(version("flwr").split(".")[:2])


def fleet_transport() -> str:
    """The protocol of the installed Flower's SuperNodes: `grpc` or `http`.

    Raises:
        UntriedFlowerError: the version is not one that was tested.
    """
    return "http" if minor() >= FIRST_OVER_HTTP else "grpc"


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

HEARTBEATS_MISSED = 2  # missed heartbeats after which a node is offline


@dataclass(frozen=True)
class RegisteredNode:
    """A node that a SuperLink knows.

    Attributes:
        status: `registered`, `online` or `offline`.
        heard: the time of its last heartbeat, in seconds since 1970; None if there was none.
        key: its public key as PEM.
    """

    id: int
    status: str
    heard: float | None
    key: bytes


def registered_nodes(database: "Path") -> list[RegisteredNode]:
    """The nodes in a SuperLink's database, except those that were unregistered."""
    import sqlite3

    # not `mode=ro`: with a write-ahead log, SQLite must write its index
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=5)) as base:
        rows = base.execute("SELECT node_id, status, online_until, heartbeat_interval, public_key FROM node").fetchall()
    nodes = []
    for number, status, online_until, interval, key in rows:
        if status == "unregistered":
            continue
        heard = None if online_until is None else online_until - HEARTBEATS_MISSED * interval
        # a SuperLink updates the status only when asked
        if status == "online" and online_until < time.time():
            status = "offline"
        # SQLite has no unsigned integers
        nodes.append(RegisteredNode(number % (1 << 64), status, heard, key))
    return nodes


# --- messages and grids -----------------------------------------------------------------------------------------

# Codes of errors in place of a reply: a simulation worker died; the ClientApp raised. A client on its own machine may
# send either.
WORKER_DIED, APP_RAISED = 0, 2
MOST_IDS = 1000  # message ids per request for replies, because a server limits its size
SERVER_NODE = 1  # the node id of every ServerApp


def take_identity(run_id: int, task_id: int) -> None:
    """Give this process the identity of a run's ServerApp, without which no message can be created. Flower's own
    processes have one."""
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
    """Whether the nodes are workers on this machine that are not restarted when they die: those of the in-process grid
    or of Ray."""
    return getattr(grid, "simulated", False) or over_ray(grid)


def in_turn(grid: "Grid") -> bool:
    """Whether messages are answered one after the other, so that none is late, as in the in-process grid. With a
    timeout, results would depend on the machine's speed."""
    return getattr(grid, "in_turn", False)


def bundle_of(app: "Path") -> bytes:
    """The files that `flwr run` sends for the app in this folder."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(app)


def call_when_stopped(grid: "Grid", handler: Callable[[], None]) -> None:
    """Call `handler` when Flower ends this process after `flwr stop`: in a simulation, the ServerApp's thread gets no
    exception."""
    if not getattr(grid, "simulated", False):
        from flwr.supercore.exit import add_exit_handler

        add_exit_handler(handler, run_before_force_exit=True)


def pulled(grid: "Grid", message_ids: Collection[str]) -> "Iterator[tuple[str, Message | str]]":
    """The replies that have arrived: the id of the message that each answers, and the reply, or the reason why it
    cannot be read.

    Over the network, Flower builds each reply from objects that a client wrote, and raises an error if they are
    malformed; all other replies of that request would be lost. Therefore the SuperLink is asked once for all arrived
    replies, and Flower builds them one at a time. (Over gRPC, up to 1.39, they are requested one at a time.)

    Args:
        message_ids: the caller may remove ids that were returned.

    Raises:
        httpx.HTTPError: the SuperLink does not answer.
    """
    if is_simulated(grid):
        for message in list(grid.pull_messages(message_ids)):
            yield message.metadata.reply_to_message_id, message
        return
    import httpx

    for message_id, pull in _arrivals(grid, list(message_ids)):
        try:
            pulled_messages = list(pull())
            replies = []
            for reply in pulled_messages:
                if reply.metadata.reply_to_message_id == message_id:
                    replies.append((message_id, reply))
            # the client wrote the id that its reply refers to; for a single reply, use the id that was requested
            if len(pulled_messages) == 1:
                replies = [(message_id, pulled_messages[0])]
        except httpx.HTTPError:
            raise
        # for malicious bytes, Flower, protobuf and NumPy raise a dozen kinds of exceptions
        except Exception as error:
            yield message_id, f"its reply is malformed: Flower cannot read it ({type(error).__name__})"
        else:
            yield from replies


def _arrivals(grid: "Grid", message_ids: list[str]) -> "Iterator[tuple[str, Callable[[], Iterable[Message]]]]":
    """Messages that may have been answered: the id, and a function that pulls the reply."""
    # a property that connects if necessary
    client = getattr(grid, "_runtime_client", None)
    if client is None:
        for message_id in message_ids:
            yield message_id, partial(grid.pull_messages, [message_id])
        return
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

    for start in range(0, len(message_ids), MOST_IDS):
        ids = message_ids[start : start + MOST_IDS]
        answer = client.PullMessages(PullAppMessagesRequest(message_ids=ids))
        for reply, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            # the SuperLink's record of which message was answered
            message_id = reply.metadata.reply_to_message_id
            single = PullAppMessagesResponse(messages_list=[reply], message_object_trees=[tree])
            if message_id in ids:
                yield message_id, partial(_build, grid, client, message_id, single)


def _build(grid: Any, client: Any, message_id: str, answer: Any) -> "list[Message]":
    """Have Flower's grid build a reply that has already been fetched."""
    grid._client = _Answered(client, answer)
    try:
        return list(grid.pull_messages([message_id]))
    finally:
        grid._client = client


class _Answered:
    """A stand-in for a grid's client that returns a fetched answer."""

    def __init__(self, client: Any, answer: Any):
        self._client = client
        self._answer = answer

    # the name of the method in Flower's client
    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        """Return the fetched answer."""
        return self._answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


# --- what `flwr` and the SuperLink say --------------------------------------------------------------------------

COMPLETED = "finished:completed"
# no telemetry, no update check, and no line breaks: `flwr` frames errors in a box of this width
QUIET = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0", "COLUMNS": "500"}
NO_INSTALLATION = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}


def submitted_run(answer: str) -> str:
    """The id of the run that `flwr run` submitted, from its JSON output; "" if it was refused."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(answer)["run-id"]) if has_succeeded(answer) else ""
    return ""


def has_succeeded(answer: str) -> bool:
    """Whether a `flwr` command succeeded, according to its JSON output."""
    with suppress(ValueError, KeyError, TypeError):
        return bool(json.loads(answer)["success"])
    return False


def run_status(answer: str) -> tuple[str, str]:
    """A run's status and its details, from `flwr ls --run-id`; `unknown` if there is none."""
    with suppress(ValueError, KeyError, IndexError, TypeError):
        run = json.loads(answer)["runs"][0]
        return run["status"], "" if run["status-details"] == "N/A" else run["status-details"]
    return "unknown", ""


def has_finished(status: str) -> bool:
    """Whether a run's status is final."""
    return status.startswith("finished")


def refusal(answer: str) -> str:
    """Why `flwr` refused: the end of the message in its JSON output, or the text in its box."""
    try:
        lines = str(json.loads(answer)["error-message"]).strip().rpartition("\n\n")[2].split()
    except (ValueError, KeyError, TypeError):
        lines = [line.strip("│ \n") for line in answer.splitlines() if line.startswith("│")]
    return " ".join(filter(None, lines)).rstrip(".")


if __name__ == "__main__":
    try:
        print(fleet_transport())
    except UntriedFlowerError as error:
        raise SystemExit(str(error)) from None
