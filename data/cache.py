"""The cache of decoded data: one folder of arrays a data set, written by the first process that asks for it.

An entry's key is made of the settings and of the sizes and times of the files, so that a changed file is another entry.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from protosphere.core.errors import StorageError
from protosphere.data.samples import Samples

FORMAT = 6


def make_key(content: Any) -> str:
    """The name of the entry that `content` (plain lists, numbers and strings) decides."""
    # not the Hasher of `datasets`, whose import takes a second in every process that opens an entry
    return hashlib.sha256(json.dumps([FORMAT, content]).encode()).hexdigest()[:24]


def read_cached(cache_dir: Path, key: str) -> Samples | None:
    """The entry `key`; None if it is not there or not whole."""
    return Samples.load(_folder(cache_dir, key))


def cached(cache_dir: Path, key: str, read: Callable[[Path], Samples]) -> Samples:
    """The entry `key`, made of what `read` returns if it is not there or not whole.

    One process writes and the others wait. It writes to a folder beside, which takes the entry's name when it is whole.

    Args:
        read: gives the samples; it may write their inputs to the empty folder that it is given.

    Raises:
        StorageError: the cache cannot be written or read back. What `read` raises.
    """
    folder = _folder(cache_dir, key)
    samples = Samples.load(folder)
    if samples is not None:
        return samples

    with one_writer(cache_dir, folder):
        samples = Samples.load(folder)
        if samples is None:
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


@contextmanager
def one_writer(cache_dir: Path, entry: Path) -> Iterator[None]:
    """While one process writes an entry of the cache in `cache_dir` the others wait.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.with_suffix(".lock")):
            yield
    except OSError as error:
        raise StorageError(
            f"the data cache {str(cache_dir)!r} cannot be written ({error.strerror or error}): free space there or "
            "set PROTOSPHERE_HOME to a writable folder."
        ) from error


def _folder(cache_dir: Path, key: str) -> Path:
    return cache_dir / "decoded" / key
