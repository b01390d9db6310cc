"""Memory that training frees and needs again.

Each step of a small CNN would otherwise return the pages of its gradients to the system and get them back, cleared: a
fifteenth of the CPU time of a round.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# of malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# the largest values that glibc itself sets, after large blocks were freed
TRIM_BYTES, MMAP_BYTES = 64 * 2**20, 32 * 2**20


def keep_freed_memory() -> None:
    """Let glibc return free memory only from 64 MB at the end of its heap, and blocks from 32 MB at once. Does nothing
    with another C library, or if the environment sets glibc's memory options."""
    if (library := _glibc()) is not None:
        library.mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, keep freed memory; afterwards, return all free pages to the system."""
    keep_freed_memory()
    try:
        yield
    finally:
        if (library := _glibc()) is not None:
            library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    is_configured = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if sys.platform != "linux" or is_configured:
        return None
    library = ctypes.CDLL(None)
    # musl has neither function
    return library if hasattr(library, "malloc_trim") else None
