"""Processes for a run's clients, and for the trials of a comparison."""

import multiprocessing
import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def worker_context(*modules: str) -> Any:
    """The `multiprocessing` context of these processes. On Linux each is forked from a server that has already imported
    what a run needs, which takes some five seconds.

    Args:
        modules: what that server imports besides.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["protosphere.launch.preloaded", *modules])
    return context


@contextmanager
def without_main_module() -> Iterator[None]:
    """Start processes inside that do not import the main module: a user's script would run again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def begin_worker(environment: Mapping[str, str]) -> None:
    """Prepare this process, which was just started.

    It gets the environment of its parent, since the server that it was forked from has an older one. And it ends when
    its parent is killed, because the parent's clean-up does not run then.
    """
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
