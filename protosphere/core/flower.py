"""All that leans on Flower beyond its public modules (`flwr.app`, `flwr.serverapp`, `flwr.clientapp`): its private
classes, its error codes, what its commands print, the tables of its database.

When Flower moves a minor on, this file is what to look at. It imports nothing of Flower until it is asked, so that the
scripts of `deploy/` can read it for nothing.
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

# the newest minor that was tried; pyproject.toml has the same bounds
OLDEST, NEWEST = (1, 39), (1, 42)
# the first whose SuperNodes speak HTTP
FIRST_OVER_HTTP = (1, 40)


class UntriedFlowerError(RuntimeError):
    """The Flower that is installed is none that was tried; the message is one sentence for a person."""


def minor() -> tuple[int, int]:
    """Flower's version here, as (1, 42).

    Raises:
        UntriedFlowerError: it is older or newer than those that were tried.
    """
    full_version = version("flwr")
    first, second, *_ = full_version.split(".")
    installed = int(first), int(second)
    if not OLDEST <= installed <= NEWEST:
        known_versions = " to ".join(".".join(map(str, pair)) for pair in (OLDEST, NEWEST))
        raise UntriedFlowerError(
            f"Flower {full_version} was not tried with this Protosphere, which knows {known_versions}; install "
            "one of these."
        )
    return installed


def minor_name() -> str:
    """Flower's version here without its last number, as `1.42`."""
    return ".".join(version("flwr").split(".")[:2])


def fleet_transport() -> str:
    """What SuperNodes of the Flower that is installed speak with their SuperLink: `grpc` or `http`.

    Raises:
        UntriedFlowerError: which of the two is not known.
    """
    return "http" if minor() >= FIRST_OVER_HTTP else "grpc"


# --- the SuperLink's database -----------------------------------------------------------------------------------

# what crosses, and what points to it, children before parents; `message` is there from 1.41 on. None outlives the
# SuperLink, with which their runs end.
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

HEARTBEATS_MISSED = 2  # after so many a node is offline


@dataclass(frozen=True)
class RegisteredNode:
    """A node that a SuperLink knows.

    Attributes:
        status: `registered`, `online` or `offline`.
        heard: when its last heartbeat came, in seconds since 1970; None where none has.
        key: its public key as PEM.
    """

    id: int
    status: str
    heard: float | None
    key: bytes


def registered_nodes(database: "Path") -> list[RegisteredNode]:
    """The nodes in a SuperLink's database, but for those that were unregistered."""
    import sqlite3

    # not `mode=ro`: of a database with a write-ahead log SQLite has to write its index
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=5)) as base:
        rows = base.execute("SELECT node_id, status, online_until, heartbeat_interval, public_key FROM node").fetchall()
    nodes = []
    for number, status, online_until, interval, key in rows:
        if status == "unregistered":
            continue
        heard = None if online_until is None else online_until - HEARTBEATS_MISSED * interval
        # a SuperLink notices only when it is asked
        if status == "online" and online_until < time.time():
            status = "offline"
        # SQLite has no unsigned numbers
        nodes.append(RegisteredNode(number % (1 << 64), status, heard, key))
    return nodes


# --- messages and grids -----------------------------------------------------------------------------------------

# the codes of errors that come back in a reply's place: a worker of the simulation is gone; the ClientApp raised.
# A client on its own machine may send any of them.
WORKER_DIED, APP_RAISED = 0, 2
MOST_IDS = 1000  # of messages in one question for their replies, whose size a server bounds
SERVER_NODE = 1  # the node id of every ServerApp


def take_identity(run_id: int, task_id: int) -> None:
    """Be the ServerApp of a run: without an identity no message can be built. Flower's processes are given theirs."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE, task_id


def stamp(message: "Message", message_id: str) -> None:
    """Give a message its id, as Flower's own grids do."""
    message.metadata.__dict__["_message_id"] = message_id


# --- what a grid brings -----------------------------------------------------------------------------------------


def over_ray(grid: "Grid") -> bool:
    """Whether the nodes are Ray's, which Flower reaches without a network."""
    if getattr(grid, "simulated", False):
        return False
    # 1.4 seconds, half of Flower's server and its database: only for who has loaded it anyway
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def is_simulated(grid: "Grid") -> bool:
    """Whether the nodes are workers of this machine, which nobody starts again when they die: the in-process grid's, or
    Ray's."""
    return getattr(grid, "simulated", False) or over_ray(grid)


def in_turn(grid: "Grid") -> bool:
    """Whether every message is answered, each when its turn has come, so that nobody is late: the in-process grid's. A
    clock would make the figures depend on the machine, or on how long it was suspended."""
    return getattr(grid, "in_turn", False)


def bundle_of(app: "Path") -> bytes:
    """What `flwr run` sends of the app in this folder."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(app)


def call_when_stopped(grid: "Grid", handler: Callable[[], None]) -> None:
    """Have `handler` called when Flower ends this process, as it does after `flwr stop`: the thread of a simulation's
    ServerApp gets no exception then."""
    if not getattr(grid, "simulated", False):
        from flwr.supercore.exit import add_exit_handler

        add_exit_handler(handler, run_before_force_exit=True)


def pulled(grid: "Grid", message_ids: Collection[str]) -> "Iterator[tuple[str, Message | str]]":
    """The replies that have arrived: the id of the message that each answers, and the reply, or in words why it cannot
    be read.

    Over the network Flower builds each reply from objects that a client wrote, and raises where they are malformed;
    what else came with it would be lost. So there the SuperLink is asked once for all that have arrived, and Flower
    builds one at a time. (Over gRPC, until 1.39, one is asked for at a time.)

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

    for message_id, pull in _arrivals(grid, list(message_ids)):
        try:
            pulled_messages = list(pull())
            replies = []
            for reply in pulled_messages:
                if reply.metadata.reply_to_message_id == message_id:
                    replies.append((message_id, reply))
            # which message it answers the client wrote itself: of a single reply we know it by what we asked for
            if len(pulled_messages) == 1:
                replies = [(message_id, pulled_messages[0])]
        except httpx.HTTPError:
            raise
        # Flower, protobuf and NumPy raise a dozen kinds for bytes that were made to harm
        except Exception as error:
            yield message_id, f"its reply is malformed: Flower cannot read it ({type(error).__name__})"
        else:
            yield from replies


def _arrivals(grid: "Grid", message_ids: list[str]) -> "Iterator[tuple[str, Callable[[], Iterable[Message]]]]":
    """Messages that may have been answered: the id, and what pulls the reply."""
    # a property that connects where that has not been done
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
            # it is the SuperLink's note of which message was answered
            message_id = reply.metadata.reply_to_message_id
            single = PullAppMessagesResponse(messages_list=[reply], message_object_trees=[tree])
            if message_id in ids:
                yield message_id, partial(_build, grid, client, message_id, single)


def _build(grid: Any, client: Any, message_id: str, answer: Any) -> "list[Message]":
    """Let Flower's grid build the reply that has been asked for already."""
    grid._client = _Answered(client, answer)
    try:
        return list(grid.pull_messages([message_id]))
    finally:
        grid._client = client


class _Answered:
    """The client of a grid, whose question for messages has its answer."""

    def __init__(self, client: Any, answer: Any):
        self._client = client
        self._answer = answer

    # the name is that of Flower's client
    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        """The answer that is there."""
        return self._answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


# --- what `flwr` and the SuperLink say --------------------------------------------------------------------------

COMPLETED = "finished:completed"
# no telemetry, no question of updates; lines that are not broken: `flwr` frames its refusals in a box as wide as this
QUIET = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0", "COLUMNS": "500"}
NO_INSTALLATION = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}


def submitted_run(answer: str) -> str:
    """The number of the run that `flwr run` has submitted, by its JSON; empty where it was refused."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(answer)["run-id"]) if has_succeeded(answer) else ""
    return ""


def has_succeeded(answer: str) -> bool:
    """Whether a `flwr` command did what it was asked for, by its JSON."""
    with suppress(ValueError, KeyError, TypeError):
        return bool(json.loads(answer)["success"])
    return False


def run_status(answer: str) -> tuple[str, str]:
    """A run's status and what is said about it, of `flwr ls --run-id`; `unknown` where there is none."""
    with suppress(ValueError, KeyError, IndexError, TypeError):
        run = json.loads(answer)["runs"][0]
        return run["status"], "" if run["status-details"] == "N/A" else run["status-details"]
    return "unknown", ""


def has_finished(status: str) -> bool:
    """Whether a run's status is its last."""
    return status.startswith("finished")


def refusal(answer: str) -> str:
    """Why `flwr` did not do as it was told: the end of its JSON's message, or the text that it frames in a box."""
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
