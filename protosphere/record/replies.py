"""What clients answer in a round: their replies, how many bytes crossed, and the files of uploads of weights.

Each upload of weights waits in a file until the round has closed; then they are read one at a time.
"""

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from protosphere.core.files import own_folder
from protosphere.wire.payloads import Payload, Report, from_tensors, to_tensors


@dataclass(frozen=True)
class Bytes:
    """Sizes of one message or a sum of them: prototype values alone, and the serialised records.

    `evaluation` is the part of `wire` that the evaluation's figures take; `features`, by feature what it asks and is
    answered, is no part of it.
    """

    payload: int = 0
    wire: int = 0
    evaluation: int = 0
    features: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "Bytes") -> "Bytes":
        features = dict(Counter(self.features) + Counter(other.features))
        payload, wire = self.payload + other.payload, self.wire + other.wire
        return Bytes(payload, wire, self.evaluation + other.evaluation, features)


@dataclass(frozen=True)
class Reply:
    """What one client answered.

    Attributes:
        trains: whether it was asked to train (else to evaluate only).
        report: the decoded reply with its checked upload; None when the whole reply is unusable.
        problem: why the reply, or its upload, was dropped; empty when all is well.
        dropped: whether its upload was refused, or was missing where one was due.
        answers: feature -> its checked answer to what that asked beside.
        refused: why something of it was dropped that spoils nothing else of the reply.
        waits: whether its upload waits in a file.
        false: whether it claims other samples than the client said it has; then nothing in it counts.
        blames: whether it says that its method, somebody's own, has failed.
    """

    partition: int
    trains: bool
    report: Report | None = None
    problem: str = ""
    dropped: bool = False
    size: Bytes = field(default_factory=Bytes)
    answers: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    waits: bool = False
    false: bool = False
    blames: bool = False

    @property
    def problems(self) -> str:
        """All that was wrong with it, in words."""
        return "; ".join(filter(None, (self.problem, self.refused)))

    @property
    def valid(self) -> bool:
        """Whether it counts towards `min-replies`."""
        return self.report is not None and not self.problem

    def without_upload(self, problem: str) -> "Reply":
        """The same, its upload dropped for this reason."""
        report = None if self.report is None else replace(self.report, payload=None)
        return replace(self, report=report, waits=False, problem=problem, dropped=True)

    def refusing(self, reason: str) -> "Reply":
        """The same, with one reason more why something of it was dropped."""
        return replace(self, refused="; ".join(filter(None, (self.refused, reason))))


NAME = "uploads"  # of the folder in the run's
MOST_VALUES = 2**24  # of all uploads that are held beside each other at once


class UploadFiles:
    """Where uploads wait, in the run's folder: memory holds one of them at a time, however many clients there are."""

    def __init__(self, folder: Path):
        self._run, self._folder = folder, folder / NAME

    def put(self, partition: int, upload: Payload) -> None:
        """Keep an upload of this round."""
        own_folder(self._run, NAME).mkdir(exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in to_tensors(upload).items()}
        save_file(tensors, self._path(partition))

    def read(self, partition: int) -> Payload:
        """An upload of this round."""
        return from_tensors(load_file(self._path(partition)))

    def names(self, partition: int) -> list[str]:
        """Of the tensors of an upload, as `to_tensors` names them, ascending."""
        with safe_open(self._path(partition), "pt") as file:
            return sorted(file.keys())

    def rows(self, partitions: Sequence[int], name: str) -> Iterator[Tensor]:
        """One tensor of several uploads, a row an upload: pieces (n, m) that make up (n, all values) side by side."""
        with safe_open(self._path(partitions[0]), "pt") as file:
            shape = file.get_slice(name).get_shape()
        values = math.prod(shape)
        if not shape or not values:
            yield torch.stack([self._piece(partition, name, 0, 1).reshape(-1) for partition in partitions])
            return
        step = max(1, MOST_VALUES // (len(partitions) * (values // shape[0])))
        for start in range(0, shape[0], step):
            yield torch.stack(
                [self._piece(partition, name, start, start + step).reshape(-1) for partition in partitions]
            )

    def _piece(self, partition: int, name: str, start: int, stop: int) -> Tensor:
        with safe_open(self._path(partition), "pt") as file:
            tensor_slice = file.get_slice(name)
            return tensor_slice[start:stop] if tensor_slice.get_shape() else file.get_tensor(name)

    def clear(self) -> None:
        """Begin a round, or end one: nothing waits.

        Raises:
            SettingError: the folder is a link.
        """
        shutil.rmtree(own_folder(self._run, NAME), ignore_errors=True)

    def _path(self, partition: int) -> Path:
        return self._folder / f"{partition:06d}.safetensors"


class StoredUploads(Mapping[int, Payload]):
    """The uploads of these partitions, in ascending order: who came first changes no bit. Each is read when it is
    asked for, and not kept.

    Args:
        believed: makes of a partition and its upload what is aggregated.
    """

    def __init__(
        self,
        upload_files: UploadFiles,
        partitions: Iterable[int],
        believed: Callable[[int, Payload], Payload] = lambda _, upload: upload,
    ):
        self._upload_files = upload_files
        self._believed = believed
        self._partitions = sorted(partitions)

    def __getitem__(self, partition: int) -> Payload:
        if partition not in self._partitions:
            raise KeyError(partition)
        return self._believed(partition, self._upload_files.read(partition))

    def rows(self, partitions: Sequence[int], part: str) -> Iterator[tuple[str, Tensor]]:
        """A part of weights of these uploads, a row an upload: names of tensors, and pieces (n, m) of these, in
        the order of `protosphere.prototypes.weights.flat`."""
        head = f"part/{part}/weights/"
        for name in self._upload_files.names(partitions[0]):
            if name.startswith(head):
                for piece in self._upload_files.rows(partitions, name):
                    yield name.removeprefix(head), piece

    def __iter__(self) -> Iterator[int]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
