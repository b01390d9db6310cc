"""Tensors in files whose bytes are held against a digest: safetensors itself has none, so that a flipped bit or a lost
page would be read as other weights.

The digest (SHA-256) stands in the file's own header, over all other bytes of the file with zeros in its place. Beside
it is the number of the file's form, so that a digest that is gone is none that never was, and, where its writer
says it, the name, so that two files that were exchanged are noticed.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.numpy import save as bytes_of_arrays
from safetensors.torch import load, save
from torch import Tensor

from protosphere.core.checksums import DIGEST, DamagedError, tell_of_no_digest
from protosphere.core.files import LARGEST, read_whole

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
    content = read_whole(path, LARGEST)
    tensors = load(content)
    header = SIZE + int.from_bytes(content[:SIZE], "little")
    metadata: dict[str, str] = json.loads(content[SIZE:header]).get("__metadata__", {})
    digest, form = metadata.pop(DIGEST, None), metadata.pop(FORM, None)
    if digest is None and (form or any(re.fullmatch("[0-9a-f]{64}", value) for value in metadata.values())):
        raise DamagedError("its digest is gone, or has lost its name")
    if digest is None:
        tell_of_no_digest(path)
    elif digest != _digest(content, header, digest):
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
