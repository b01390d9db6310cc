"""What a process that trains does differently from others: it skips garbage collection at its start and end, and keeps
the memory that it frees.

Garbage collection takes 1.5 of the 4.0 CPU seconds of a client's process: a deployment starts a process per message,
and torch alone creates half a million permanent objects.
"""

import atexit
import ctypes
import gc
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# of malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
FREED_BYTES_KEPT = 256 * 2**20
# the most to which glibc raises the threshold by itself
MAPPED_FROM_BYTES = 32 * 2**20


@contextmanager
def uncollected() -> Iterator[None]:
    """Load modules inside without garbage collection."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def end_at_once() -> None:
    """Let this process end without garbage collection; `atexit` handlers run, and open files are closed."""
    atexit.register(_leave)


def keep_freed_memory() -> None:
    """Let the C library keep memory that is freed, up to 256 MB.

    Otherwise each training step returns the pages of its gradients to the system and gets them back, cleared: a
    fifteenth of the CPU time of a round of small CNNs. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, FREED_BYTES_KEPT)
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


def _leave() -> None:
    # files that only the collection would close, because objects refer to each other in cycles; selected by type,
    # because checking each of a quarter of a million objects takes longer
    objects = gc.get_objects()
    kinds = set(map(type, objects))
    # nanobind would report its objects as leaks, such as those of Triton, which torch's optimisers load
    if any(kind.__module__ == "nanobind" for kind in kinds):
        return
    files = {kind for kind in kinds if io.IOBase.__base__ in kind.__mro__}
    for file in [item for item in objects if type(item) in files]:
        # closed, or open for reading only
        with suppress(Exception):
            file.flush()
    gc.freeze()
