"""The one atomic write: what is half-written is never seen under its name. And what is no file that could be read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protosphere.core.errors import DataError, public

LARGEST = 2**36  # bytes of a table or an archive of arrays, 64 GiB; all of it is read
LARGEST_ROW = 2**30  # bytes of a file that is one row, an image or a text
LARGEST_RECORD = 2**31  # bytes of a file of words that this program wrote, such as metrics.jsonl


class IrregularError(OSError):
    """What is no file that could be read to its end; the message is a part of a sentence."""


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
    # who gave the folder away may have put a link there, through which we would write
    temporary.unlink(missing_ok=True)
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


def read_whole(path: Path, most: int = LARGEST) -> bytes:
    """All bytes of a file that somebody else may have made.

    Raises:
        IrregularError: it is no regular file, or has more than `most` bytes.
        OSError: it cannot be read.
    """
    status = path.stat()
    if kind := _kind(status):
        raise IrregularError(f"it is, or leads to, {kind} and no file with an end")
    if status.st_size > most:
        raise IrregularError(f"it has {status.st_size} bytes, and at most {most} are read")
    with path.open("rb") as file:
        # no more than that, since not all that is a regular file has an end
        return file.read(status.st_size)


def refuse_irregular(path: Path, most: int = LARGEST) -> None:
    """Refuse to read what is no regular file, or too large a one: a link in a data folder may lead to a device that has
    no end, and a pipe waits for a writer. What is missing is left to whoever reads it.

    Raises:
        DataError: what it is.
    """
    try:
        status = path.stat()
    except OSError:
        return
    if kind := _kind(status):
        raise DataError(
            f"{str(path)!r} is, or leads to, {kind} and no file with an end; take it away, or put a file there.",
            public("irregular-file"),
        )
    if status.st_size > most:
        raise DataError(
            f"{str(path)!r} has {status.st_size} bytes, and of such a file at most {most} are read; part it, or take "
            "it away if it is no part of the data.",
            public("too-large", most=most),
        )


def _kind(status: os.stat_result) -> str:
    """What it is that is no regular file; "" for one that is."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return "a folder" if stat.S_ISDIR(status.st_mode) else "a device, a pipe or a socket"
