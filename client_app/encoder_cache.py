"""Features of samples by a large public encoder, kept in files, so that no process asks it twice."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.files import read_tensors, replacing, write_tensors

log = logging.getLogger("protosphere")
FEATURES = "features"
MOST_BYTES = 20 * 2**30  # of all files together; the ones that were used longest ago go first


def cached(folder: Path, facts: Mapping[str, Any], inputs: Tensor, encode: Callable[[], Tensor]) -> Tensor:
    """u (n, d) float32 of these samples: from a file of `folder` that holds them, else of `encode`, and then kept.

    Args:
        facts: what the features follow from beside the samples, as JSON: the encoder's fingerprint among them.
        inputs: the samples as stored, (n, ...).
    """
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    values = inputs.detach().cpu().contiguous()
    digest.update(f"{tuple(values.shape)} {values.dtype}".encode())
    digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    path = folder / f"{digest.hexdigest()}.safetensors"
    try:
        stored_features: Tensor = read_tensors(path)[0][FEATURES]
        if len(stored_features) == len(inputs):
            with suppress(OSError):
                # its time says when it was used last; if another process has just removed it, none is made anew
                os.utime(path)
            return stored_features
    except (OSError, SafetensorError, KeyError):
        # none yet, or a damaged one: the encoder makes it anew
        pass
    features = encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write_tensors(temporary, {FEATURES: features})
        _shrink(folder, MOST_BYTES)
    except OSError as error:
        log.warning("features of the encoder cannot be kept in %s (%s); every run computes them anew.", folder, error)
    return features


def _shrink(folder: Path, most_bytes: int) -> None:
    """Remove the files that were used longest ago, until the others hold no more than so many bytes."""
    stats = {}
    # what killed processes left of a file is one of them
    for path in folder.glob("*.safetensors*"):
        # another process may have removed it
        with suppress(FileNotFoundError):
            stats[path] = path.stat()
    total = sum(stat.st_size for stat in stats.values())
    for path in sorted(stats, key=lambda path: stats[path].st_mtime):
        if total <= most_bytes:
            return
        path.unlink(missing_ok=True)
        total -= stats[path].st_size
