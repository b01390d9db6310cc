"""What a run keeps of its prototypes for the report: how far apart the global ones lie, and a round's vectors."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from protosphere.prototypes.part import ClassVectors
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.separation import separation
from protosphere.wire.payloads import EVERYONE, Payload, class_vectors

MOST_VALUES = 2**22  # of all clients' vectors together, 17 MB; the global ones and a row's two numbers come to that
MOST_PRODUCTS = 2**30  # K K d: a second or two a round


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
    parts: list[tuple[int, Tensor, Tensor]] = []
    room = MOST_VALUES
    sets_by_client = {p: part for p, upload in sorted(uploads.items()) if (part := class_vectors(upload)) is not None}
    for partition, upload in sets_by_client.items():
        vectors = upload_scale * upload.points
        room -= vectors.numel()
        if room < 0:
            break
        parts.append((partition, upload.labels, vectors))
    tensors: dict[str, Tensor] = {}
    common = _common(downloads)
    if common is not None:
        tensors |= {"global/labels": common.labels, "global/vectors": scale * common.points}
    if parts:
        sizes = torch.tensor([len(labels) for _, labels, _ in parts])
        tensors |= {
            "local/clients": torch.tensor([partition for partition, _, _ in parts]).repeat_interleave(sizes),
            "local/labels": torch.cat([labels for _, labels, _ in parts]),
            "local/vectors": torch.cat([vectors for _, _, vectors in parts]),
        }
    about = {"clients": len(sets_by_client), "left_out": len(sets_by_client) - len(parts)}
    return tensors, about | ({"scaled": 1} if upload_scale != 1 else {})


def _common(downloads: Mapping[int, Payload]) -> ClassVectors | None:
    """What all clients get alike."""
    return class_vectors(downloads[EVERYONE]) if set(downloads) == {EVERYONE} else None
