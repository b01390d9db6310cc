"""Flower's SuperNode, to which a stopped run does no harm: `supernode.py OPTION ...`, options of `flower-supernode`.

When a run is stopped while a SuperNode receives a message of it, Flower ignores the message and forgets that a task for
it was begun (seen with 1.39 and 1.42). Its ClientApp lives on for minutes, and its late reply is taken for that to the
next message, so that from then on the first reply of every run stays at the site. For any other error Flower takes
message and task away again; so here that of a stopped run is one of them.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode


def cleaning(pull_and_store: Callable[..., Any]) -> Callable[..., Any]:
    """The function of Flower's that receives a message, which leaves nothing of one that it could not receive."""

    def with_ordinary_error(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RunNotRunningException:
            raise RuntimeError("the run was stopped") from None

    def pull(**calls: Any) -> Any:
        for name in ("pull_object", "confirm_message_received"):
            calls[name] = partial(with_ordinary_error, calls[name])
        return pull_and_store(**calls)

    return pull


if __name__ == "__main__":
    start_client_internal._pull_and_store_message = cleaning(start_client_internal._pull_and_store_message)
    sys.argv[0] = "flower-supernode"
    flower_supernode()
