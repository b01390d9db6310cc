"""Files that survive: the one atomic write, lines of JSON, and tensors held against a digest.

What is half-written is never seen under its name, and a flipped bit or a lost block of a tensor is an error and no
other figure: safetensors itself has no digest."""

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
    """See a file, or a folder's list of names, to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


class Unsettled:
    """Files that are to be on the disk together, later: a simulation's clients need not wait each for its own, as long
    as theirs are there before the checkpoint that counts on them.

    Attributes:
        paths: those that are not settled yet; None where each is at once.
    """

    def __init__(self) -> None:
        self.paths: set[Path] | None = None

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Inside, files may wait for `settle`; at the end it is called. Those of a run that has started this
        one wait on."""
        outer, self.paths = self.paths, set()
        try:
            yield
            self.settle()
        finally:
            self.paths = outer

    def settle(self) -> None:
        """See all that wait to the disk, side by side: a disk takes many at once in the time of a few.

        Raises:
            OSError: one cannot be written.
        """
        if not self.paths:
            return
        paths, self.paths = self.paths, set()
        # by now another may have taken its place, or none
        paths = {path for path in paths if path.exists()}
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as threads:
            list(threads.map(sync, paths))
            list(threads.map(_sync_folder, {path.parent for path in paths}))


unsettled = Unsettled()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        # not every file system can
        sync(folder)


@contextmanager
def replacing(path: Path, may_wait: bool = False) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when it is whole and on the disk, and goes when it is not.

    Args:
        may_wait: it need not be on the disk before `unsettled.settle`, where files wait for that.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    # of this call: two that write the same name do not spoil each other's, and processes of two machines or containers
    # that share a folder may have the same number
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        if may_wait and unsettled.paths is not None:
            os.replace(temporary, path)
            unsettled.paths.add(path)
            return
        # a power cut may keep the new name and lose the pages
        sync(temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_link(folder: Path) -> None:
    """Refuse a folder in whose place a link lies: files are to be deleted in it, and a received folder's link may lead
    anywhere.

    Raises:
        SettingError: it is a link.
    """
    if folder.is_symlink():
        place = os.readlink(folder)
        raise SettingError(f"{folder} is a link to {place}, where files would be deleted; remove the link.")


@contextmanager
def folder_lock(folder: Path, what: str) -> Iterator[None]:
    """Hold a run's or a comparison's folder. The operating system lets go of it when the process dies.

    Args:
        what: what holds it elsewhere, if it is held: "a run".

    Raises:
        SettingError: another process holds it, or it cannot be written.
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
    """Whether a process runs in the folder, or may: a lock that cannot be opened is another user's."""
    # a folder without a lock is not to get one by being looked at
    if not (folder / ".lock").exists():
        return False
    try:
        with folder_lock(folder, "a run"):
            return False
    except SettingError:
        return True


# --- lines of JSON ----------------------------------------------------------------------------------------------


class DamagedError(OSError):
    """A file that is not as it was written; the message is a part of a sentence."""


def read_lines(path: Path) -> Iterator[Any]:
    """The values of a file of JSON lines, one at a time, since the figures of 10,000 clients fill a line. A last line
    without an end, as a kill leaves it, is left out.

    Raises:
        DamagedError: a line is no JSON; it says which.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        # by "\n" alone: a flipped bit may make another line's end of a letter
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
FORM, FORM_NUMBER = "protosphere", "1"  # in every file that has a digest, but for those of the first version with one
NAME = "file"  # the name without its ending under which a file was written
PLACE = "0" * 64
SIZE = 8  # bytes at the front, which hold the length of the header


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and words beside them as one safetensors file.

    Args:
        metadata: the words. With NAME the file is refused under any other name than this.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    content = _bytes_of(tensors, {**(metadata or {}), FORM: FORM_NUMBER, DIGEST: PLACE})
    header = SIZE + int.from_bytes(content[:SIZE], "little")
    front, body = _order_header(content[SIZE:header]), memoryview(content)[header:]
    hasher = hashlib.sha256(front)
    hasher.update(body)
    with open(path, "wb") as file:
        # the header is small, and alone holds the place
        file.write(front.replace(_entry(PLACE), _entry(hasher.hexdigest()), 1))
        file.write(body)


def read_tensors(path: Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and words of a file that `write_tensors` has made, or another writer of safetensors, with a notice.

    Raises:
        DamagedError: its bytes are not those that were written, or it has another file's name.
        OSError, SafetensorError: it cannot be read.
    """
    content = path.read_bytes()
    tensors = load(content)
    header = SIZE + int.from_bytes(content[:SIZE], "little")
    metadata: dict[str, str] = json.loads(content[SIZE:header]).get("__metadata__", {})
    digest, form = metadata.pop(DIGEST, None), metadata.pop(FORM, None)
    if digest is None and (form or any(re.fullmatch("[0-9a-f]{64}", value) for value in metadata.values())):
        raise DamagedError("its digest is gone, or has lost its name")
    if digest is not None and digest != _digest(content, header, digest):
        raise DamagedError("its bytes are not those that were written")
    name = metadata.pop(NAME, path.stem)
    if name != path.stem:
        raise DamagedError(f"it is what was written as {name}{path.suffix}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def _order_header(header: bytes) -> bytes:
    """The front of a file with its words in order: safetensors writes them in another order each time, and the same
    run is the same to the bit."""
    content = json.loads(header)
    content["__metadata__"] = dict(sorted(content["__metadata__"].items()))
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % SIZE)
    return len(text).to_bytes(SIZE, "little") + text


def _digest(content: bytes, header: int, digest: str) -> str:
    # without a copy of what may be a large model
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
        # NumPy has no bfloat16; copies, since tensors that share memory are refused
        return save({name: tensor.clone() for name, tensor in cpu_tensors.items()}, metadata)
    # the same file, without checks of torch's tensors that take longer than all the rest
    return bytes_of_arrays(arrays, metadata)
