"""Durable files: atomic writes, JSON lines, and tensors with a digest.

A partly written file never has its final name. A flipped bit or a lost block of a tensor file raises an error instead
of changing the result; safetensors itself has no digest.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.numpy import save as bytes_of_arrays
from safetensors.torch import load, save
from torch import Tensor

from protosphere.core.errors import SettingError

SYNCS_AT_ONCE = 16


# --- writing whole or not at all -------------------------------------------------------------------------------


def sync(path: Path) -> None:
    """Flush a file, or a folder's directory entries, to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


class Unsettled:
    """Files that are flushed to the disk together, later. A simulation's clients need not wait for each file, if all
    are on the disk before the checkpoint that refers to them.

    Attributes:
        paths: the files that are not flushed yet; None if files are flushed immediately.
    """

    def __init__(self) -> None:
        self.paths: set[Path] | None = None

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Inside, files may wait for `settle`, which is called at the end. A nested run does not flush the files of the
        outer one."""
        outer, self.paths = self.paths, set()
        try:
            yield
            self.settle()
        finally:
            self.paths = outer

    def settle(self) -> None:
        """Flush all waiting files in parallel: a disk flushes many in the time of a few.

        Raises:
            OSError: a file cannot be written.
        """
        if not self.paths:
            return
        paths, self.paths = self.paths, set()
        # it may have been replaced or deleted since
        paths = {path for path in paths if path.exists()}
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as threads:
            list(threads.map(sync, paths))
            list(threads.map(_sync_folder, {path.parent for path in paths}))


unsettled = Unsettled()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        # not every file system supports it
        sync(folder)


@contextmanager
def replacing(path: Path, may_wait: bool = False) -> Iterator[Path]:
    """A temporary file next to `path` that replaces it once it is complete and on the disk, and is deleted on failure.

    Args:
        may_wait: if files wait for `unsettled.settle`, this one may, too.

    Raises:
        OSError: it cannot be written; the previous file is unchanged.
    """
    # unique for this call: writers of the same name do not overwrite each other's file, even on machines or in
    # containers with a shared folder, where process ids may be equal
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        if may_wait and unsettled.paths is not None:
            os.replace(temporary, path)
            unsettled.paths.add(path)
            return
        # a power cut may keep the new name and lose the content
        sync(temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_link(folder: Path) -> None:
    """Refuse a folder that is a link: files are deleted in it, and a link in a received folder may lead anywhere.

    Raises:
        SettingError: it is a link.
    """
    if folder.is_symlink():
        place = os.readlink(folder)
        raise SettingError(f"{folder} is a link to {place}, where files would be deleted; remove the link.")


@contextmanager
def folder_lock(folder: Path, what: str) -> Iterator[None]:
    """Lock a run's or a comparison's folder. The operating system releases the lock when the process ends.

    Args:
        what: the likely holder in the message: "a run".

    Raises:
        SettingError: another process holds the lock, or it cannot be written.
    """
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise SettingError(
            f"{folder} is being written by {what} that has not ended; wait for it, or stop it first."
        ) from None
    except OSError as error:
        raise SettingError(f"{folder} cannot be written ({error.strerror}).") from None
    try:
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process runs, or may run, in the folder: a lock that cannot be opened belongs to another user."""
    # do not create a lock file just by looking
    if not (folder / ".lock").exists():
        return False
    try:
        with folder_lock(folder, "a run"):
            return False
    except SettingError:
        return True


# --- lines of JSON ----------------------------------------------------------------------------------------------


class DamagedError(OSError):
    """A file differs from what was written; the message is part of a sentence."""


def read_lines(path: Path) -> Iterator[Any]:
    """Read the values of a file of JSON lines one at a time, because the metrics of 10,000 clients fill a line. An
    incomplete last line, as a kill leaves it, is skipped.

    Raises:
        DamagedError: a line is no JSON; the message names it.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        # split at "\n" only: a flipped bit may turn a letter into another line separator
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DamagedError(f"line {number} is damaged ({error})") from None
            yield value


# --- tensors with a digest ------------------------------------------------------------------------------------

DIGEST = "digest"
FORM, FORM_NUMBER = "protosphere", "1"  # mark of the format; only files of the first version lack it
NAME = "file"  # key of the name, without its suffix, under which a file was written
PLACE = "0" * 64
SIZE = 8  # bytes at the start, which hold the header's length


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and text metadata as one safetensors file.

    Args:
        metadata: with the key NAME, the file is refused under any other name.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    content = _bytes_of(tensors, {**(metadata or {}), FORM: FORM_NUMBER, DIGEST: PLACE})
    header = SIZE + int.from_bytes(content[:SIZE], "little")
    front, body = _order_header(content[SIZE:header]), memoryview(content)[header:]
    hasher = hashlib.sha256(front)
    hasher.update(body)
    with open(path, "wb") as file:
        # the header is small and the only part that depends on the name
        file.write(front.replace(_entry(PLACE), _entry(hasher.hexdigest()), 1))
        file.write(body)


def read_tensors(path: Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a file from `write_tensors`, or from another safetensors writer, with a warning.

    Raises:
        DamagedError: its content differs from what was written, or its name is another file's.
        OSError, SafetensorError: it cannot be read.
    """
    content = path.read_bytes()
    tensors = load(content)
    header = SIZE + int.from_bytes(content[:SIZE], "little")
    metadata: dict[str, str] = json.loads(content[SIZE:header]).get("__metadata__", {})
    digest, form = metadata.pop(DIGEST, None), metadata.pop(FORM, None)
    if digest is None and (form or any(re.fullmatch("[0-9a-f]{64}", value) for value in metadata.values())):
        raise DamagedError("its digest is missing or has no name")
    if digest is not None and digest != _digest(content, header, digest):
        raise DamagedError("its content differs from what was written")
    name = metadata.pop(NAME, path.stem)
    if name != path.stem:
        raise DamagedError(f"it is a copy of {name}{path.suffix}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def _order_header(header: bytes) -> bytes:
    """The start of a file with sorted metadata: safetensors writes them in a random order, and equal runs must give
    equal bits."""
    content = json.loads(header)
    content["__metadata__"] = dict(sorted(content["__metadata__"].items()))
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % SIZE)
    return len(text).to_bytes(SIZE, "little") + text


def _digest(content: bytes, header: int, digest: str) -> str:
    # without copying a possibly large model
    hasher = hashlib.sha256(content[:header].replace(_entry(digest), _entry(PLACE), 1))
    hasher.update(memoryview(content)[header:])
    return hasher.hexdigest()


def _entry(digest: str) -> bytes:
    return f'"{DIGEST}":"{digest}"'.encode()


def _bytes_of(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        arrays = {name: tensor.numpy() for name, tensor in cpu_tensors.items()}
    except TypeError:
        # NumPy has no bfloat16; copies, because safetensors refuses tensors that share memory
        return save({name: tensor.clone() for name, tensor in cpu_tensors.items()}, metadata)
    # the same file as from torch's writer, without its slow checks of tensors
    return bytes_of_arrays(arrays, metadata)
