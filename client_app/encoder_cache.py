"""Caches the features of a large public encoder in files, so that they are computed once."""

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
MOST_BYTES = 20 * 2**30  # of all files together; the least recently used files are removed first


def cached(folder: Path, facts: Mapping[str, Any], inputs: Tensor, encode: Callable[[], Tensor]) -> Tensor:
    """u (n, d) float32 of these samples: from a file in `folder`, else from `encode`, and then stored.

    Args:
        facts: everything besides the samples that determines the features, as JSON: among others the encoder's
            fingerprint.
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
                # marks the time of its last use; a file that another process has just removed is not made again
                os.utime(path)
            return stored_features
    except (OSError, SafetensorError, KeyError):
        # the file is missing or damaged: compute the features
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
    """Remove the least recently used files until the others have at most so many bytes."""
    stats = {}
    # this includes partial files of killed processes
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
