"""The samples of several classes in one tensor of equally large tiles, so that one matrix product serves all classes.
With one tile per class, a single large class among many small ones would fill the tensor with padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# with fewer rows, the overhead of a tile outweighs its padding
LEAST_TILE = 16


@dataclass
class ClassTiles:
    """The samples of k classes in T tiles of W rows; every tile belongs to one class."""

    rows: Tensor  # (T, W, 2d): centred features and their squares, zeros where a class's last tile has no more samples
    real: Tensor  # (T, W): 1 for a sample, 0 for padding
    owner: Tensor  # (T,): the position of each tile's class

    @property
    def dim(self) -> int:
        """d, the length of a sample."""
        return self.rows.shape[2] // 2

    def forms(self, linear: Tensor, square: Tensor, constant: Tensor) -> Tensor:
        """linear·x + square·x² + constant at each sample x of a class, for m forms per class -> (T, m, W).

        linear, square: (k, m, d); constant: (k, m). Padding gets the constant.
        """
        factors = torch.cat([linear, square], dim=2)[self.owner]
        # rows first: on a CPU, the product and all that follows are several times as fast as with samples last
        values = torch.bmm(self.rows, factors.transpose(1, 2)).transpose(1, 2).contiguous()
        return values.add_(constant[self.owner].unsqueeze(2))

    def by_class(self, values: Tensor, classes: int) -> Tensor:
        """The sums of values (T, ...) over each class's tiles -> (k, ...)."""
        return values.new_zeros(classes, *values.shape[1:]).index_add_(0, self.owner, values)

    def without(self, finished: Tensor) -> ClassTiles:
        """The tiles of the classes that are not finished (k,) bool; reuses this object's memory, which is invalid
        afterwards. Unfinished tiles from the end fill the places of finished ones, so few tiles move.
        """
        going = finished[self.owner]
        places = (~going).nonzero().flatten()
        remaining = len(places)
        holes = going[:remaining].nonzero().flatten()
        fillers = places[remaining - len(holes) :]
        self.rows[holes], self.real[holes], self.owner[holes] = (
            self.rows[fillers],
            self.real[fillers],
            self.owner[fillers],
        )
        position = (~finished).cumsum(0) - 1
        return ClassTiles(self.rows[:remaining], self.real[:remaining], position[self.owner[:remaining]])


def class_tiles(
    features: Tensor, order: Tensor, counts: Tensor, dtype: torch.dtype
) -> tuple[ClassTiles, Tensor, Tensor]:
    """The centred features (n, d) in tiles, class by class; only the last tile of a class has padding.

    order: (n,), the rows class by class. -> tiles of `dtype`, and in float64 the classes' centres (k, d), their means
    up to the rounding of the features' dtype, and the means of their variances (k,).
    """
    samples, dim = features.shape
    # the mean class size: all padding then never exceeds all samples by more than a tile
    width = min(int(counts.max()), max(LEAST_TILE, -(-samples // len(counts))))
    tiles_of = (counts + width - 1) // width
    owner = torch.arange(len(counts), device=counts.device).repeat_interleave(tiles_of)
    # the first ordered row of each tile: tile t of a class starts after t tiles of its rows
    within = torch.arange(len(owner), device=counts.device) - (tiles_of.cumsum(0) - tiles_of)[owner]
    place = within.unsqueeze(1) * width + torch.arange(width, device=counts.device)
    real = place < counts[owner].unsqueeze(1)
    padding = (~real).nonzero(as_tuple=True)
    place = (place + (counts.cumsum(0) - counts)[owner].unsqueeze(1)).clamp(max=samples - 1)

    # few passes over the samples: if convergence is quick, they take longer than the iteration
    gathered = features[order[place.flatten()]].view(*real.shape, dim).to(torch.promote_types(features.dtype, dtype))
    gathered[padding] = 0
    tiles = ClassTiles(gathered.new_empty(*real.shape, 2 * dim, dtype=dtype), real.to(dtype), owner)
    sums = tiles.by_class(gathered.sum(dim=1, dtype=torch.float64), len(counts))
    # rounded, so that exactly what is subtracted here is added to the means in the end
    centres = (sums / counts.unsqueeze(1)).to(gathered.dtype)
    centred, squared = tiles.rows[:, :, :dim], tiles.rows[:, :, dim:]
    torch.sub(gathered, centres[owner].unsqueeze(1), out=centred)
    centred[padding] = 0
    torch.mul(centred, centred, out=squared)
    squares = tiles.by_class(squared.sum(dim=1).double(), len(counts))
    return tiles, centres.double(), squares.sum(dim=1) / (counts * dim)
