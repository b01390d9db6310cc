"""Weights on the wire: three arrays whatever the model, and the layout that both ends know, so that no name crosses in
a round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protosphere.prototypes.quantisation import QuantisationError, dequantise, quantise
from protosphere.prototypes.weights import STATISTICS, VARIANCE, Layout
from protosphere.wire.checks import CodecError, MessageError, check_texts
from protosphere.wire.specs import STORED, Fields, Transform

MOST_LINES = 4096
MOST_VALUES = 2**28


def layout_lines(part: str, layout: Layout) -> list[str]:
    """A layout as a client says it once: `head/classifier.weight:10x500`, a line a tensor."""
    return [f"{part}/{name}:{'x'.join(map(str, shape))}" for name, shape in layout]


def read_layouts(lines: Sequence[str]) -> dict[str, Layout]:
    """Inverse of `layout_lines`, for all parts of a client.

    Raises:
        MessageError: a line of another form, names that are not unique and ascending, too many lines or values.
    """
    check_texts("layouts", lines)
    if len(lines) > MOST_LINES:
        raise MessageError(f"the layout has {len(lines)} tensors, at most {MOST_LINES} are agreed")
    tensors_by_part: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for line in lines:
        part, _, description = line.partition("/")
        name, colon, sizes = description.rpartition(":")
        shape = tuple(int(size) for size in sizes.split("x") if size.isascii() and size.isdigit())
        if not part or not name or not colon or min(shape, default=1) < 1 or "x".join(map(str, shape)) != sizes:
            raise MessageError(f"the layout's line {line!r} is no `part/name:shape`")
        tensors_by_part.setdefault(part, []).append((name, shape))
    for part, tensors in tensors_by_part.items():
        names = [name for name, _ in tensors]
        if sorted(set(names)) != names:
            raise MessageError(f"the names of the layout of `{part}` are not unique and ascending")
        if sum(math.prod(shape) for _, shape in tensors) > MOST_VALUES:
            raise MessageError(f"the layout of `{part}` has more than {MOST_VALUES} values")
    return {part: tuple(tensors) for part, tensors in tensors_by_part.items()}


@dataclass(frozen=True)
class WeightFormat(Transform):
    """`values`: tensors of two dimensions or more as rows, in the number format; `small`: the others as float32.

    Attributes:
        layout: of the tensors; only the receiver needs it.
    """

    kind = "weights"
    wire_dtype: str
    layout: Layout = ()

    @property
    def words(self) -> str:
        return f"format={self.wire_dtype}"

    @property
    def fields(self) -> set[str]:
        """The arrays that cross."""
        return {"values", "small"}

    def send(self, fields: Fields) -> Fields:
        large: list[Tensor] = []
        small: list[Tensor] = []
        weights = {name: tensor.float() for name, tensor in fields.items() if tensor.is_floating_point()}
        for name, tensor in weights.items():
            if tensor.dim() < 2:
                if not bool(tensor.isfinite().all()):
                    raise CodecError(f"weights cannot be sent: `{name}` holds a value that is not finite")
                small.append(tensor.reshape(-1))
                continue
            try:
                values = quantise(tensor.reshape(len(tensor), -1), self.wire_dtype)
            except QuantisationError as error:
                raise CodecError(f"weights cannot be sent: tensor `{name}`: {error}") from None
            large.append(values.reshape(-1))
        stored = quantise(torch.zeros(1, 1), self.wire_dtype).dtype
        arrays = {"values": _join(large, stored), "small": _join(small, torch.float32)}
        # whole numbers, which another transform put beside the weights, stay
        return arrays | {name: tensor for name, tensor in fields.items() if name not in weights}

    def receive(self, fields: Fields) -> Fields:
        """The tensors of the layout; `check_lengths` comes before."""
        tensors: Fields = {}
        offsets = dict.fromkeys(self.fields, 0)

        def taken(field: str, number: int) -> Tensor:
            offsets[field] += number
            return fields[field][offsets[field] - number : offsets[field]]

        for name, shape in self.layout:
            if len(shape) < 2:
                tensors[name] = taken("small", math.prod(shape)).reshape(shape)
                continue
            rows = taken("values", math.prod(shape)).reshape(shape[0], -1)
            try:
                tensors[name] = dequantise(rows, self.wire_dtype).reshape(shape)
            except QuantisationError as error:
                raise MessageError(f"tensor `{name}`: {error}") from None
        return tensors

    def check_lengths(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse arrays of other types or lengths than the layout's."""
        large = [shape for _, shape in self.layout if len(shape) > 1]
        expected = {
            "values": (np.dtype(STORED[self.wire_dtype]), sum(map(math.prod, large))),
            "small": (np.dtype(np.float32), sum(math.prod(shape) for _, shape in self.layout if len(shape) < 2)),
        }
        for field in self.fields:
            dtype, length = expected[field]
            if arrays[field].dtype != dtype or arrays[field].shape != (length,):
                raise MessageError(
                    f"the array `{field}` is {arrays[field].dtype} of shape {arrays[field].shape}, {length} values of "
                    f"{dtype} were agreed"
                )


def _join(pieces: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(pieces)) if pieces else torch.zeros(0, dtype=dtype)


def check_tensors(tensors: Fields, max_norm: float, change: bool = False) -> None:
    """Refuse received tensors with a value that is not finite, a negative running variance, or a norm above
    `max_norm`; running statistics, whose scale is the data's, have none.

    Args:
        change: whether they are a change of weights, in which a variance may be negative.
    """
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, max_norm, change)


def _check_tensor(name: str, tensor: Tensor, max_norm: float, change: bool) -> None:
    if not bool(tensor.isfinite().all()):
        raise MessageError(f"tensor `{name}` holds a value that is not finite")
    if not change and name.endswith(VARIANCE) and bool((tensor < 0).any()):
        raise MessageError(f"tensor `{name}` holds a negative variance")
    if not name.endswith(STATISTICS) and float(tensor.double().norm()) > max_norm:
        raise MessageError(
            f"tensor `{name}` has norm {float(tensor.double().norm()):.3g}, above `max-prototype-norm` {max_norm:.3g}"
        )
