"""Named tensors of a model as one value, exchanged by methods that share weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import Kind, PartValue

Layout = tuple[tuple[str, tuple[int, ...]], ...]  # (name, shape), names ascending
# running statistics of batch norms: their scale is that of the data, so norm limits do not apply to them
VARIANCE = "running_var"
STATISTICS = ("running_mean", VARIANCE)


@dataclass(frozen=True)
class Weights(PartValue):
    """Tensors of one or more layers.

    Attributes:
        tensors: name -> float32, names ascending; floating-point parameters and buffers, never a counter.
    """

    kind: ClassVar[Kind] = "weights"
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        ordered = {name: self.tensors[name] for name in sorted(self.tensors)}
        object.__setattr__(self, "tensors", ordered)

    @property
    def layout(self) -> Layout:
        """Names and shapes, in order."""
        return tuple((name, tuple(tensor.shape)) for name, tensor in self.tensors.items())

    def fields(self) -> dict[str, Tensor]:
        return dict(self.tensors)

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(tensors)

    def to(self, device: torch.device | str) -> "Weights":
        """The same tensors on another device."""
        return Weights({name: tensor.to(device) for name, tensor in self.tensors.items()})


def flat(weights: Weights) -> Tensor:
    """All values in order of the names, (n,) float64, for sums."""
    return torch.cat([tensor.reshape(-1).double() for tensor in weights.tensors.values()])


def unflat(values: Tensor, layout: Layout) -> Weights:
    """Inverse of `flat`, as float32."""
    sizes = [int(torch.Size(shape).numel()) for _, shape in layout]
    pieces = values.float().split(sizes)
    return Weights({name: piece.reshape(shape) for (name, shape), piece in zip(layout, pieces, strict=True)})


def taken(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Weights:
    """Some tensors of a model's state, copied to the CPU."""
    return Weights({name: tensors[name].detach().cpu().float().clone() for name in names})
