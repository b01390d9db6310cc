"""Processes for a run's clients, and for the trials of a comparison."""

import multiprocessing
import os
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

LONGEST_PLACE = 70  # characters of the folder for temporary files, in which the server has a socket; its path is short
_main_module = threading.RLock()


def forking_context(*modules: str) -> Any:
    """The `multiprocessing` context of trials. On Linux each process is forked from a server that has already imported
    what a run needs, which takes some five seconds.

    Args:
        modules: what that server imports besides.
    """
    if sys.platform != "linux" or len(tempfile.gettempdir()) > LONGEST_PLACE:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["protosphere.launch.preloaded", *modules])
    # it would import from the working directory, where a user's calendar.py may lie, and not from this process's path
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    before = {name: os.environ.get(name) for name in ("PYTHONSAFEPATH", "PYTHONPATH")}
    os.environ.update(PYTHONSAFEPATH="1", PYTHONPATH=path)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
    return context


@contextmanager
def without_main_module() -> Iterator[None]:
    """Start processes inside that do not import the main module: a user's script would run again."""
    with _main_module:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def end_with_parent() -> None:
    """Let this process end when its parent is killed, since the parent's clean-up does not run then."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
