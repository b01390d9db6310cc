"""Uploads that are added up: each waits in a file until its round has closed, then they are read one at a time."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from federation.wire.payloads import Identity, Payload, from_tensors, to_tensors
from strategies.contract import ServerHalf, Sums


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


def added_up(
    half: ServerHalf, scratch: Scratch, partitions: Iterable[int], identities: Mapping[int, Identity]
) -> dict[int, Sums]:
    """Each group's total, added from zero in ascending order of partitions: who came first changes no bit."""
    totals: dict[int, dict[str, torch.Tensor]] = {}
    for partition in sorted(partitions):
        total = totals.setdefault(half.group(partition), {})
        for name, tensor in half.contribution(scratch.read(partition), identities[partition]).items():
            total[name] = total.get(name, torch.zeros_like(tensor)) + tensor
    return dict(totals)
