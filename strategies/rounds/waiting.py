"""Uploads of weights: each waits in a file until its round has closed, then they are read one at a time."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file

from federation.wire.payloads import Payload, from_tensors, to_tensors


class Scratch:
    """Where uploads wait, in the run's folder: memory holds one of them at a time, however many clients there are."""

    def __init__(self, folder: Path):
        self._folder = folder / "uploads"

    def put(self, partition: int, upload: Payload) -> None:
        """Keep an upload of this round."""
        self._folder.mkdir(exist_ok=True)
        whole = {name: tensor.contiguous() for name, tensor in to_tensors(upload).items()}
        save_file(whole, self._path(partition))

    def read(self, partition: int) -> Payload:
        """An upload of this round."""
        return from_tensors(load_file(self._path(partition)))

    def clear(self) -> None:
        """Begin a round, or end one: nothing waits."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, partition: int) -> Path:
        return self._folder / f"{partition:06d}.safetensors"


class Waiting(Mapping[int, Payload]):
    """The uploads of these partitions, in ascending order: who came first changes no bit. Each is read when it is
    asked for, and not kept.

    Args:
        believed: makes of a partition and its upload what is aggregated.
    """

    def __init__(
        self,
        scratch: Scratch,
        partitions: Iterable[int],
        believed: Callable[[int, Payload], Payload] = lambda _, upload: upload,
    ):
        self._scratch = scratch
        self._believed = believed
        self._partitions = sorted(partitions)

    def __getitem__(self, partition: int) -> Payload:
        if partition not in self._partitions:
            raise KeyError(partition)
        return self._believed(partition, self._scratch.read(partition))

    def __iter__(self) -> Iterator[int]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
