"""The one atomic write: what is half-written is never seen under its name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when it is whole, and goes when it is not.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    # of this process: two that write the same name do not spoil each other's
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
