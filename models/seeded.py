"""Layers initialised from their own seed, independently of other draws."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def drawn(seed: int, draw: Callable[[], T]) -> T:
    """The result of `draw` under a seed; torch's global random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the GPUs
        torch.default_generator.manual_seed(seed)
        return draw()
