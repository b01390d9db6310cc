"""All that leans on Flower beyond its public modules (`flwr.app`, `flwr.serverapp`, `flwr.clientapp`): its private
classes, its error codes, what its commands print, its ports, the paths of its HTTP API, the tables of its database.

When Flower moves a minor on, this file is what to look at. It imports nothing of Flower until it is asked, so that the
scripts of `deploy/` can read it for nothing.
"""

from importlib.metadata import version

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
    whole = version("flwr")
    first, second, *_ = whole.split(".")
    found = int(first), int(second)
    if not OLDEST <= found <= NEWEST:
        known = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        raise UntriedFlowerError(
            f"Flower {whole} was not tried with this Protosphere, which knows {known}; install one of these."
        )
    return found


def fleet_transport() -> str:
    """What SuperNodes of the Flower that is installed speak with their SuperLink: `grpc` or `http`.

    Raises:
        UntriedFlowerError: which of the two is not known.
    """
    return "http" if minor() >= FIRST_OVER_HTTP else "grpc"


# --- the HTTP API of a SuperLink, from 1.40 on ------------------------------------------------------------------

# what a SuperNode calls; the first two only where it brings its own key, which a SuperLink with node keys refuses
SELF_REGISTRATION = ("/v1/fleet/register-node", "/v1/fleet/unregister-node")
FLEET_PATHS = (
    "/v1/fleet/activate-node",
    "/v1/fleet/deactivate-node",
    "/v1/fleet/send-node-heartbeat",
    "/v1/fleet/pull-messages",
    "/v1/fleet/push-messages",
    "/v1/fleet/get-run",
    "/v1/fleet/get-fab",
    "/v1/fleet/push-object",
    "/v1/fleet/pull-object",
    "/v1/fleet/confirm-message-received",
)
# the one whose body is a piece of a message; all others name what they mean
PATH_OF_OBJECTS = "/v1/fleet/push-object"
# all that a SuperNode says of itself in the head of a request; the last three are versions
FLEET_HEADERS = (
    "content-type",
    "accept",
    "flwr-public-key",
    "flwr-signature",
    "flwr-timestamp",
    "flwr-package-name",
    "flwr-package-version",
    "flwr-component-name",
)

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
# nodes and their keys, runs, what their logs say; of language models and connectors, which we have none of
OTHER_TABLES = (
    "alembic_version",
    "automation",
    "compacted_contexts",
    "connector",
    "connector_oauth_session",
    "fab",
    "federation_app",
    "node",
    "nonce_store",
    "objectstore_locks",
    "run",
    "run_connector",
    "run_series",
    "series_context",
    "series_runs",
    "task",
    "task_event",
    "task_logs",
    "task_usage",
)


if __name__ == "__main__":
    try:
        print(fleet_transport())
    except UntriedFlowerError as error:
        raise SystemExit(str(error)) from None
