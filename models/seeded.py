"""Layers that are drawn from a seed of their own, whatever else draws."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def drawn(seed: int, draw: Callable[[], T]) -> T:
    """What `draw` makes of a seed; torch's global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which reseeds the GPUs, too
        torch.default_generator.manual_seed(seed)
        return draw()
