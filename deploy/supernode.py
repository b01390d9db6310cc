"""Flower's SuperNode, protected against stopped runs: `supernode.py OPTION ...`, with options of `flower-supernode`.

If a run is stopped while a SuperNode receives one of its messages, Flower ignores the message but keeps the task that
it started for it (seen with 1.39 and 1.42). The ClientApp lives on for minutes, and its late reply is taken for the
reply to the next message, so that from then on the first reply of every run stays at the site. After any other error,
Flower removes message and task. Here a stopped run becomes such an error.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode


def cleaning(pull_and_store: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's function that receives a message, changed so that it leaves nothing of a message that it could not
    receive."""

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
