"""Global prototypes over rounds, kept small for the report: a file a round in `prototypes/` of the run's folder.

float16, at most MOST_ROUNDS of them: every round at first, then every second, every fourth, so that they stay even.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.files import replacing
from protosphere.core.tensor_files import NAME, read_tensors, write_tensors
from protosphere.record.locations import own_folder

FOLDER = "prototypes"
MOST_ROUNDS = 50
MOST_VALUES = 2**18  # of a round: 0.5 MB


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
    if vectors.numel() > MOST_VALUES or not bool(vectors.isfinite().all()):
        return
    place.mkdir(exist_ok=True)
    path = place / f"round-{round_number:06d}.safetensors"
    with replacing(path) as temporary:
        write_tensors(temporary, {"labels": tensors["global/labels"], "vectors": vectors}, {NAME: path.stem})


def kept(folder: Path) -> dict[int, tuple[Tensor, Tensor]]:
    """Round -> labels (k,), vectors (k, d) float64, by ascending round; a file that cannot be read is none."""
    prototypes_by_round = {}
    for path in sorted((folder / FOLDER).glob("round-*.safetensors")):
        try:
            tensors, _ = read_tensors(path)
            prototypes_by_round[_round(path)] = tensors["labels"], tensors["vectors"].double()
        except (OSError, SafetensorError, KeyError):
            continue
    return prototypes_by_round


def _round(path: Path) -> int:
    digits = path.stem.removeprefix("round-")
    return int(digits) if digits.isdecimal() else 0
