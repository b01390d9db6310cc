"""Features of samples by a large public encoder, kept in files, so that no process asks it twice."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.files import read_tensors, replacing, write_tensors

log = logging.getLogger("protosphere")
FEATURES = "features"


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
        kept: Tensor = read_tensors(path)[0][FEATURES]
        if len(kept) == len(inputs):
            return kept
    except (OSError, SafetensorError, KeyError):
        # none yet, or a damaged one: the encoder makes it anew
        pass
    features = encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write_tensors(temporary, {FEATURES: features})
    except OSError as error:
        log.warning("features of the encoder cannot be kept in %s (%s); every run computes them anew.", folder, error)
    return features
