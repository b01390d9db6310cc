"""The cache of decoded data: one folder of arrays per data set, written by the first process that asks for it.

An entry's key depends on the settings and on the files' sizes and times, so a changed file gets a new entry.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from protosphere.core.errors import StorageError
from protosphere.data.samples import Samples

FORMAT = 7
T = TypeVar("T")


def make_key(content: Any) -> str:
    """The key for a value of plain lists, numbers and strings."""
    # `datasets` has a hasher, but its import takes a second in every process
    return hashlib.sha256(json.dumps([FORMAT, content], sort_keys=True).encode()).hexdigest()[:24]


def entry(cache_dir: Path, key: str) -> Path:
    """The folder of an entry, which `Samples.load` reads."""
    return cache_dir / "decoded" / key


def cached(cache_dir: Path, key: str, read: Callable[[Path], Samples]) -> Samples:
    """The entry `key`, made `once` of what `read` returns, which may write inputs to the empty folder that it gets."""

    def make(folder: Path) -> Samples:
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            read(partial).save(partial)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        samples = Samples.load(folder)
        if samples is None:
            raise StorageError(f"the data cache {str(folder)!r} cannot be read back: its disk is full or faulty.")
        return samples

    return once(cache_dir, entry(cache_dir, key), Samples.load, make)


def once(cache_dir: Path, path: Path, load: Callable[[Path], T | None], make: Callable[[Path], T]) -> T:
    """What `load` reads at a path in the cache. If it is missing or damaged, one process calls `make`, which writes it,
    and the others wait.

    Raises:
        StorageError: the cache cannot be written. Also whatever `make` raises.
    """
    content = load(path)
    if content is not None:
        return content

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            content = load(path)
            if content is None:
                content = make(path)
    except OSError as error:
        raise StorageError(
            f"the data cache {str(cache_dir)!r} cannot be written ({error.strerror or error}): free space there or "
            "set PROTOSPHERE_HOME to a writable folder."
        ) from error
    return content
