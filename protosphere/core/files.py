"""Durable files: atomic writes, JSON lines, and tensors with a digest, which safetensors itself lacks."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save
from torch import Tensor

from protosphere.core.errors import SettingError

# --- writing whole or not at all -------------------------------------------------------------------------------


def sync(path: Path) -> None:
    """Flush a file, or a folder's directory entries, to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


class Unsettled:
    """Files of a simulation's clients, which are flushed together before the checkpoint that refers to them."""

    def __init__(self) -> None:
        self.paths: set[Path] | None = None  # files to flush; None if each is flushed immediately

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Inside, files may wait for `settle`, which is called at the end."""
        outer, self.paths = self.paths, set()
        try:
            yield
            self.settle()
        finally:
            self.paths = outer

    def settle(self) -> None:
        """Flush all waiting files in parallel: a disk flushes many in the time of a few."""
        if not self.paths:
            return
        paths, self.paths = self.paths, set()
        # it may have been replaced or deleted since
        paths = {path for path in paths if path.exists()}
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(sync, paths))
            list(threads.map(_sync_folder, {path.parent for path in paths}))


unsettled = Unsettled()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        # not every file system supports it
        sync(folder)


@contextmanager
def replacing(path: Path, may_wait: bool = False) -> Iterator[Path]:
    """A temporary file that replaces `path` when it is complete and on the disk; after an error, it is deleted.

    A file that `may_wait` may be flushed later, by `unsettled.settle`.
    """
    # random, because process ids may be equal in containers with a shared folder
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
    """Refuse a folder that is a link: files are deleted in it, and a link in a received folder may lead anywhere."""
    if folder.is_symlink():
        place = os.readlink(folder)
        raise SettingError(f"{folder} is a link to {place}, where files would be deleted; remove the link.")


@contextmanager
def folder_lock(folder: Path, what: str) -> Iterator[None]:
    """Lock a run's or a comparison's folder; the system releases the lock when the process ends.

    `what` is the likely holder ("a run") in the SettingError if another process holds the lock.
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
    """Read the values of a file of JSON lines one at a time; an incomplete last line is skipped.

    Raises DamagedError for a line that is no JSON.
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

METADATA, DIGEST = "protosphere", "digest"  # the one entry of safetensors' metadata, and its key for the digest
NAME = "file"  # key of the name, without its suffix, under which a file was written


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and text metadata as one safetensors file. With the key NAME, it is refused under another name."""
    texts = dict(metadata or {})
    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    texts[DIGEST] = _digest(cpu_tensors, texts)
    # one entry, because safetensors orders entries at random, and equal runs must give equal files
    entry = {METADATA: json.dumps(texts, sort_keys=True)}
    try:
        content = save_arrays({name: tensor.numpy() for name, tensor in cpu_tensors.items()}, entry)
    except TypeError:
        # NumPy has no bfloat16; torch's writer is slower, and wants copies of tensors that share memory
        content = save({name: tensor.clone() for name, tensor in cpu_tensors.items()}, entry)
    path.write_bytes(content)


def read_tensors(path: Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a file from `write_tensors`.

    Raises:
        DamagedError: its content differs from what was written, or its name is another file's.
        OSError, SafetensorError: it cannot be read.
    """
    content = path.read_bytes()
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    try:
        texts: dict[str, str] = json.loads(header["__metadata__"][METADATA])
        digest = texts.pop(DIGEST)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedError("another version of Protosphere wrote it: use that version") from None
    if digest != _digest(tensors, texts):
        raise DamagedError("its content differs from what was written")
    name = texts.pop(NAME, path.stem)
    if name != path.stem:
        raise DamagedError(f"it is a copy of {name}{path.suffix}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, texts


def _digest(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    hasher = hashlib.sha256(json.dumps(texts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
