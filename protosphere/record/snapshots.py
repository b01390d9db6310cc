"""Prototypes kept for the report: how far apart the global ones lie, a round's vectors, and the global ones by round.

Over rounds: a file a round in `prototypes/` of the run's folder, float16, at most MOST_ROUNDS of them: every round at
first, then every second, every fourth, so that they stay even. With `keep-prototypes = "all"` every round's, as they
were, and the clients' own beside them."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.files import NAME, own_folder, read_tensors, replacing, write_tensors
from protosphere.prototypes.prototype_set import ClassVectors, PrototypeSet
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


FOLDER = "prototypes"
MOST_ROUNDS = 50
MOST_HISTORY_VALUES = 2**18  # of a round: 0.5 MB


def step_of(newest: int) -> int:
    """Of which rounds those up to `newest` are kept: the multiples of this power of two."""
    step = 1
    while newest // step > MOST_ROUNDS:
        step *= 2
    return step


def keep(folder: Path, round_number: int, tensors: dict[str, Tensor]) -> None:
    """Keep the global prototypes of a round's snapshot, where there are any that float16 can hold.

    Those of later rounds, which a resumed run does again, go, and those that are one too many.

    Raises:
        OSError, SafetensorError: they cannot be written. SettingError: their folder is a link.
    """
    place, step = own_folder(folder, FOLDER), step_of(round_number)
    for old in place.glob("round-*.safetensors"):
        number = _round(old)
        if number > round_number or number % step:
            old.unlink(missing_ok=True)
    if round_number % step or "global/labels" not in tensors:
        return
    vectors = tensors["global/vectors"].detach().cpu().to(torch.float16)
    if vectors.numel() > MOST_HISTORY_VALUES or not bool(vectors.isfinite().all()):
        return
    place.mkdir(exist_ok=True)
    path = place / f"round-{round_number:06d}.safetensors"
    with replacing(path) as temporary:
        write_tensors(temporary, {"labels": tensors["global/labels"], "vectors": vectors}, {NAME: path.stem})


def keep_whole(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, int]) -> None:
    """Keep a round's snapshot as it is, and those of all rounds before it.

    Raises:
        OSError, SafetensorError: it cannot be written. SettingError: the folder is a link.
    """
    place = own_folder(folder, FOLDER)
    for old in place.glob("round-*.safetensors"):
        if _round(old) > about["round"]:
            old.unlink(missing_ok=True)
    place.mkdir(exist_ok=True)
    path = place / f"round-{about['round']:06d}.safetensors"
    named = {name.removeprefix("global/"): tensor for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        write_tensors(temporary, named, {NAME: path.stem, **{name: str(value) for name, value in about.items()}})


def kept(folder: Path) -> dict[int, tuple[Tensor, Tensor]]:
    """Round -> labels (k,), vectors (k, d) float64 of the global prototypes, by ascending round, of an even part of
    the rounds where there are many; a file that cannot be read is none."""
    prototypes_by_round = {}
    rounds = kept_rounds(folder)
    step = step_of(max(rounds, default=0))
    for number in rounds:
        # below them all that were kept are, unless every round's were
        tensors = {} if number % step else load(folder, number)
        if "labels" in tensors and "vectors" in tensors:
            prototypes_by_round[number] = tensors["labels"], tensors["vectors"].double()
    return prototypes_by_round


def kept_rounds(folder: Path) -> list[int]:
    """The rounds of which a file is there."""
    return sorted(_round(path) for path in (folder / FOLDER).glob("round-*.safetensors"))


def load(folder: Path, round_number: int) -> dict[str, Tensor]:
    """A round's tensors: `labels` and `vectors` of the global prototypes, and of clients, where they were kept, those
    that begin with `local/`; none of a file that cannot be read."""
    try:
        return read_tensors(folder / FOLDER / f"round-{round_number:06d}.safetensors")[0]
    except (OSError, SafetensorError):
        return {}


def _round(path: Path) -> int:
    digits = path.stem.removeprefix("round-")
    return int(digits) if digits.isdecimal() else 0
