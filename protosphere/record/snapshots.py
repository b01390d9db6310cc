"""Prototypes that a run keeps for its report and `Run.prototypes`: how far apart the global ones lie, and the vectors
of the newest round, or with `keep-prototypes = "all"` of every round, a file each in `prototypes/`."""

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

MOST_VALUES = 2**22  # of all clients' vectors together, 17 MB; the global ones and a row's two numbers come to that
MOST_PRODUCTS = 2**30  # K K d: a second or two a round
NEWEST, FOLDER = "prototypes.safetensors", "prototypes"  # of the newest round, and of every round


def separation_of(downloads: Mapping[int, Payload], scale: float) -> dict[str, Any]:
    """`separation`: distances and angles of prototypes that all clients share, as their targets (times `scale`).
    Nothing where clients get prototypes of their own, mixtures, fewer than two, or so many that it would take long."""
    common = _common(downloads)
    if not isinstance(common, PrototypeSet) or len(common) * common.vectors.numel() > MOST_PRODUCTS:
        return {}
    distances = separation(scale * common.vectors.double())
    return {} if distances is None else {"separation": asdict(distances)}


def snapshot(
    uploads: Mapping[int, Payload], downloads: Mapping[int, Payload], scale: float, upload_scale: float = 1.0
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A round's prototypes, and what there is to say of them.

    Returns:
        `global/labels` (k,) and `global/vectors` (k, d) as targets; `local/clients` (n,), `local/labels` (n,) and
        `local/vectors` (n, d) as they came up, times `upload_scale`; of mixtures the means. And how many clients there
        are, how many were left out since all would take too much room (those of the highest numbers), and `scaled`
        where uploads were multiplied.
    """
    tensors: dict[str, Tensor] = {}
    common = _common(downloads)
    if common is not None:
        tensors |= {"global/labels": common.labels, "global/vectors": scale * common.points}
    vectors_by_client = {partition: class_vectors(upload) for partition, upload in sorted(uploads.items())}
    sets_by_client = {partition: vectors for partition, vectors in vectors_by_client.items() if vectors is not None}
    clients, labels, points, room = [], [], [], MOST_VALUES
    for partition, vectors in sets_by_client.items():
        room -= vectors.points.numel()
        if room < 0:
            break
        clients.append(torch.full_like(vectors.labels, partition))
        labels.append(vectors.labels)
        points.append(upload_scale * vectors.points)
    if clients:
        tensors |= {
            "local/clients": torch.cat(clients),
            "local/labels": torch.cat(labels),
            "local/vectors": torch.cat(points),
        }
    about = {"clients": len(sets_by_client), "left_out": len(sets_by_client) - len(clients)}
    if upload_scale != 1:
        about["scaled"] = 1
    return tensors, about


def _common(downloads: Mapping[int, Payload]) -> ClassVectors | None:
    """What all clients get alike."""
    return class_vectors(downloads[EVERYONE]) if set(downloads) == {EVERYONE} else None


def save(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, int], every: bool = False) -> None:
    """Write a round's prototypes, and what there is to say of them.

    Args:
        folder: the run's. every: whether those of all rounds stay, or of the newest alone.

    Raises:
        SettingError: they cannot be written.
    """
    texts = {name: str(value) for name, value in about.items()}
    number = about["round"]
    with explain_unwritable(folder):
        with replacing(folder / NEWEST) as temporary:
            write_tensors(temporary, tensors, texts)
        for old in kept_rounds(folder):
            # a resumed run does later rounds again
            if old > number:
                _file(folder, old).unlink(missing_ok=True)
        if every:
            (folder / FOLDER).mkdir(exist_ok=True)
            path = _file(folder, number)
            with replacing(path) as temporary:
                write_tensors(temporary, tensors, {NAME: path.stem, **texts})


def newest(folder: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The newest round's prototypes, as they were saved; both empty where there are none.

    Raises:
        SettingError: the file cannot be read.
    """
    path = folder / NEWEST
    if not path.exists():
        return {}, {}
    try:
        tensors, metadata = read_tensors(path)
        return tensors, {name: int(value) for name, value in metadata.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise SettingError(f"the prototypes in {path} cannot be read ({error}); take the file away.") from None


def read_round(folder: Path, number: int) -> dict[str, Tensor]:
    """What is kept of a round, by the names of `snapshot`; nothing of a file that is not there or cannot be read."""
    try:
        return read_tensors(_file(folder, number))[0]
    except (OSError, SafetensorError):
        return {}


def kept_rounds(folder: Path) -> list[int]:
    """The rounds of which a file is there."""
    names = [path.stem.removeprefix("round-") for path in (folder / FOLDER).glob("round-*.safetensors")]
    return sorted(int(name) for name in names if name.isdecimal())


def _file(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"round-{number:06d}.safetensors"
