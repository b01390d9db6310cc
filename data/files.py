"""The one atomic write: what is half-written is never seen under its name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def sync(path: Path) -> None:
    """See a file, or a folder's list of names, to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when it is whole and on the disk, and goes when it is not.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    # of this process: two that write the same name do not spoil each other's
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        # a power cut may keep the new name and lose the pages
        sync(temporary)
        os.replace(temporary, path)
        with suppress(OSError):
            # not every file system can
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
