"""Python's search for garbage, left out where it takes a process seconds and finds none: at its start and at its end.

A deployment starts a process for each message, and every command is one: torch alone makes half a million objects that
stay. Measured on a client's process, of 4.0 processor seconds: 0.5 to load the modules, 1.0 to end.
"""

import atexit
import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def uncollected() -> Iterator[None]:
    """While inside, modules are loaded without it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def end_at_once() -> None:
    """Have this process end without it; what is due at the end (`atexit`, open files) is done all the same."""
    atexit.register(_leave)


def _leave() -> None:
    # what waits in a file that only the search would close, where objects that know each other keep it; by kinds, since
    # to ask each of a quarter of a million objects takes longer
    objects = gc.get_objects()
    kinds = set(map(type, objects))
    # its objects, such as those of Triton, which torch's own optimisers load, would be told of as leaks
    if any(kind.__module__ == "nanobind" for kind in kinds):
        return
    files = {kind for kind in kinds if io.IOBase.__base__ in kind.__mro__}
    for file in [item for item in objects if type(item) in files]:
        # closed, or to be read alone
        with suppress(Exception):
            file.flush()
    gc.freeze()
