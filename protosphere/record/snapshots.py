"""Prototypes that a run stores for its report and `Run.prototypes`: those of the newest round and, with
`keep-prototypes = "all"`, of every round, one file each in `prototypes/`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.errors import SettingError
from protosphere.core.files import NAME, read_tensors, replacing, write_tensors
from protosphere.prototypes.prototype_set import ClassVectors, PrototypeSet
from protosphere.prototypes.separation import separation
from protosphere.record.folder import explain_unwritable
from protosphere.wire.payloads import EVERYONE, Payload, class_vectors

# values of all clients' vectors together (17 MB), without the global vectors and the two numbers per row
MOST_VALUES = 2**22
MOST_PRODUCTS = 2**30  # K K d: one or two seconds per round
NEWEST, FOLDER = "prototypes.safetensors", "prototypes"  # the file of the newest round, and the folder of all rounds


def separation_of(downloads: Mapping[int, Payload], scale: float) -> dict[str, Any]:
    """`separation`: distances and angles between the prototypes that all clients share, times `scale`; empty if
    clients get mixtures or different prototypes, or if there are fewer than two or too many."""
    common = _common(downloads)
    if not isinstance(common, PrototypeSet) or len(common) * common.vectors.numel() > MOST_PRODUCTS:
        return {}
    distances = separation(scale * common.vectors.double())
    return {} if distances is None else {"separation": asdict(distances)}


def snapshot(
    uploads: Mapping[int, Payload], downloads: Mapping[int, Payload], scale: float, upload_scale: float = 1.0
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A round's prototypes, and numbers about them.

    Returns:
        `global/labels` (k,) and `global/vectors` (k, d) as targets; `local/clients` (n,), `local/labels` (n,) and
        `local/vectors` (n, d) as uploaded, times `upload_scale`; for mixtures, the means. The second value holds the
        number of clients, of those left out to save space, and `scaled` if uploads were multiplied.
    """
    tensors: dict[str, Tensor] = {}
    common = _common(downloads)
    if common is not None:
        tensors |= {"global/labels": common.labels, "global/vectors": scale * common.points}
    number, clients, labels, points, room = 0, [], [], [], MOST_VALUES
    for partition, upload in sorted(uploads.items()):
        vectors = class_vectors(upload)
        if vectors is None:
            continue
        number += 1
        room -= vectors.points.numel()
        if room >= 0:
            clients.append(torch.full_like(vectors.labels, partition))
            labels.append(vectors.labels)
            points.append(upload_scale * vectors.points)
    if clients:
        tensors |= {
            "local/clients": torch.cat(clients),
            "local/labels": torch.cat(labels),
            "local/vectors": torch.cat(points),
        }
    about = {"clients": number, "left_out": number - len(clients)}
    if upload_scale != 1:
        about["scaled"] = 1
    return tensors, about


def _common(downloads: Mapping[int, Payload]) -> ClassVectors | None:
    """The prototypes that all clients get."""
    return class_vectors(downloads[EVERYONE]) if set(downloads) == {EVERYONE} else None


def save(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, int], every: bool = False) -> None:
    """Write a round's prototypes, with the numbers about them, to the run's folder; `every` keeps all rounds."""
    texts = {name: str(value) for name, value in about.items()}
    number = about["round"]
    with explain_unwritable(folder):
        with replacing(folder / NEWEST) as temporary:
            write_tensors(temporary, tensors, texts)
        for old in kept_rounds(folder):
            # a resumed run repeats later rounds
            if old > number:
                _file(folder, old).unlink(missing_ok=True)
        if every:
            (folder / FOLDER).mkdir(exist_ok=True)
            path = _file(folder, number)
            with replacing(path) as temporary:
                write_tensors(temporary, tensors, {NAME: path.stem, **texts})


def newest(folder: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Load the newest round's prototypes, and the numbers about them; both are empty if there are none."""
    return _read(folder / NEWEST) if (folder / NEWEST).exists() else ({}, {})


def read_round(folder: Path, number: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Load the prototypes of a round of `kept_rounds`, and the numbers about them."""
    return _read(_file(folder, number))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    try:
        tensors, metadata = read_tensors(path)
        return tensors, {name: int(value) for name, value in metadata.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise SettingError(f"the prototypes in {path} cannot be read ({error}).") from None


def kept_rounds(folder: Path) -> list[int]:
    """The rounds that have a file."""
    names = [path.stem.removeprefix("round-") for path in (folder / FOLDER).glob("round-*.safetensors")]
    return sorted(int(name) for name in names if name.isdecimal())


def _file(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"round-{number:06d}.safetensors"
