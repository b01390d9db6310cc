"""What the tests of the mathematics share: random rotations and unit rows, and states to compare."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def rotation(d: int, seed: int = 0) -> Tensor:
    """A random orthogonal (d, d) matrix, float64."""
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).Q


def units(rows: int, d: int, seed: int = 0) -> Tensor:
    """Random unit rows (rows, d), float64."""
    return normalize(torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)
