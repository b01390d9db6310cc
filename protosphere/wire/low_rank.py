"""Weights of low rank: a tensor as the product of two smaller ones, which keeps a share of its energy.

A tensor counts as its matrix (out, rest); its energy is the sum of its squared singular values. What is written so is a
`Weights` with A (out, k) and B (k, rest) in the tensor's place, so that it crosses as it was made, however often.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protosphere.prototypes.weights import Layout, Weights
from protosphere.wire.checks import MessageError
from protosphere.wire.specs import Fields, Transform

RANKS = "ranks"
LEFT, RIGHT = "/left", "/right"  # after a tensor's name: its A and B


def factored(weights: Weights, energy: float) -> Weights:
    """Each tensor of two or more dimensions by A = U_k S_k and B = V_k^T, where those have fewer values.

    k is the smallest number of singular values with `energy` of the sum of their squares, at least 1. Computed in
    float64 on the CPU.

    Args:
        energy: to be kept, in (0, 1].
    """
    return Weights(
        {n: t for name, tensor in weights.tensors.items() for n, t in _factorise(name, tensor, energy).items()}
    )


def _factorise(name: str, tensor: Tensor, energy: float) -> dict[str, Tensor]:
    if tensor.dim() < 2:
        return {name: tensor}
    matrix = tensor.cpu().reshape(len(tensor), -1).double()
    left_vectors, singular_values, right_vectors = torch.linalg.svd(matrix, full_matrices=False)
    energies = singular_values.square().cumsum(0)
    rank = min(int((energies < energy * energies[-1]).sum()) + 1, len(energies))
    if rank * sum(matrix.shape) >= matrix.numel():
        return {name: tensor}
    return {
        name + LEFT: (left_vectors[:, :rank] * singular_values[:rank]).float(),
        name + RIGHT: right_vectors[:rank].float(),
    }


def products(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `factored`, but for shapes: A B as (out, rest). In float64, so that each machine rounds the same."""
    products_by_name = {}
    for name, tensor in tensors.items():
        base = name.removesuffix(LEFT)
        if base != name:
            products_by_name[base] = (tensor.double() @ tensors[base + RIGHT].double()).float()
        elif not name.endswith(RIGHT):
            products_by_name[name] = tensor
    return products_by_name


def factors_of(layout: Layout, ranks: np.ndarray) -> Layout:
    """The layout of what crosses, by the ranks that came: one a tensor of two or more dimensions, 0 for a whole one.

    Raises:
        MessageError: ranks of another type or number, or that the tensor's matrix cannot have.
    """
    large = [name for name, shape in layout if len(shape) > 1]
    if ranks.dtype != np.int32 or ranks.shape != (len(large),):
        raise MessageError(
            f"the array `{RANKS}` is {ranks.dtype} of shape {ranks.shape}, {len(large)} values of int32 were agreed"
        )
    rank_by_name = dict(zip(large, ranks.tolist(), strict=True))
    factors: list[tuple[str, tuple[int, ...]]] = []
    for name, shape in layout:
        rank, rows, columns = rank_by_name.get(name, 0), (shape or (1,))[0], int(np.prod(shape[1:], dtype=np.int64))
        if not 0 <= rank <= min(rows, columns):
            raise MessageError(f"tensor `{name}` has rank {rank}, 0 to {min(rows, columns)} were agreed")
        factors += [(name + LEFT, (rows, rank)), (name + RIGHT, (rank, columns))] if rank else [(name, shape)]
    return tuple(factors)


@dataclass(frozen=True)
class LowRank(Transform):
    """Both factors cross among the large tensors, A then B in the tensor's place, and `ranks` says of which there are
    any. A method makes them with `factored`; the receiver has their product."""

    kind = "weights"

    @property
    def words(self) -> str:
        return "low-rank"

    def send(self, fields: Fields) -> Fields:
        # by the tensors' names, which the receiver's layout is ordered by
        names = sorted(fields, key=lambda name: (name.removesuffix(LEFT).removesuffix(RIGHT), name))
        large = [name for name in names if fields[name].dim() > 1 and not name.endswith(RIGHT)]
        ranks = [fields[name].shape[1] if name.endswith(LEFT) else 0 for name in large]
        return {name: fields[name] for name in names} | {RANKS: torch.tensor(ranks, dtype=torch.int32)}

    def receive(self, fields: Fields) -> Fields:
        return products(fields)
