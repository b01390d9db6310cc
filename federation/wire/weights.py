"""Weights on the wire: three arrays whatever the model, and the layout that both ends know, so that no name crosses in
a round."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from federation.wire.checks import MessageError, check_texts
from prototypes.quantisation import QuantisationError, dequantise, quantise
from prototypes.weights import STATISTICS, Layout, Weights

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
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for line in lines:
        part, _, rest = line.partition("/")
        name, colon, sizes = rest.rpartition(":")
        shape = tuple(int(size) for size in sizes.split("x") if size.isascii() and size.isdigit())
        if not part or not name or not colon or min(shape, default=1) < 1 or "x".join(map(str, shape)) != sizes:
            raise MessageError(f"the layout's line {line!r} is no `part/name:shape`")
        found.setdefault(part, []).append((name, shape))
    for part, tensors in found.items():
        names = [name for name, _ in tensors]
        if sorted(set(names)) != names:
            raise MessageError(f"the names of the layout of `{part}` are not unique and ascending")
        if sum(math.prod(shape) for _, shape in tensors) > MOST_VALUES:
            raise MessageError(f"the layout of `{part}` has more than {MOST_VALUES} values")
    return {part: tuple(tensors) for part, tensors in found.items()}


def norms_of(part: object) -> dict[str, float]:
    """The norms of a part's tensors, where it is one of weights."""
    return part.norms() if isinstance(part, Weights) else {}


def weight_arrays(weights: Weights, wire_dtype: str) -> dict[str, np.ndarray]:
    """`values`: tensors of two dimensions or more as rows, in the number format; `small`: the others as float32, since
    int8 would ruin biases and running variances; `value_scales`: of int8, one a row.

    Raises:
        QuantisationError: a value that the format cannot hold.
    """
    large: list[Tensor] = []
    scales: list[Tensor] = []
    small: list[Tensor] = []
    for name, tensor in weights.tensors.items():
        whole = tensor.detach().cpu().float()
        if whole.dim() < 2:
            if not bool(whole.isfinite().all()):
                raise QuantisationError(f"`{name}` holds a value that is not finite")
            small.append(whole.reshape(-1))
            continue
        values, scale = quantise(whole.reshape(len(whole), -1), wire_dtype)
        large.append(values.reshape(-1))
        scales += [] if scale is None else [scale]
    stored = quantise(torch.zeros(1, 1), wire_dtype)[0].dtype
    arrays = {"values": _joined(large, stored), "small": _joined(small, torch.float32)}
    return arrays | ({"value_scales": _joined(scales, torch.float32)} if wire_dtype == "int8" else {})


def _joined(pieces: Sequence[Tensor], dtype: torch.dtype) -> np.ndarray:
    joined: np.ndarray = (torch.cat(list(pieces)) if pieces else torch.zeros(0, dtype=dtype)).numpy()
    return joined


def weight_fields(wire_dtype: str) -> set[str]:
    """The arrays of a part of kind `weights`."""
    return {"values", "small"} | ({"value_scales"} if wire_dtype == "int8" else set())


def checked_weights(
    arrays: Mapping[str, np.ndarray], layout: Layout, wire_dtype: str, max_norm: float, update: bool = False
) -> Weights:
    """Received arrays as the tensors of a layout.

    Args:
        max_norm: largest norm of a tensor; running statistics, whose scale is the data's, are spared.
        update: whether these are differences, whose running variances may be negative.

    Raises:
        MessageError: a wrong type or length, a value that is not finite, a negative running variance, a norm.
    """
    large = [(name, shape) for name, shape in layout if len(shape) > 1]
    due = {
        "values": (np.dtype(_STORED[wire_dtype]), sum(math.prod(shape) for _, shape in large)),
        "small": (np.dtype(np.float32), sum(math.prod(shape) for _, shape in layout if len(shape) < 2)),
        "value_scales": (np.dtype(np.float32), sum(shape[0] for _, shape in large)),
    }
    for field in weight_fields(wire_dtype):
        dtype, length = due[field]
        if arrays[field].dtype != dtype or arrays[field].shape != (length,):
            raise MessageError(
                f"the array `{field}` is {arrays[field].dtype} of shape {arrays[field].shape}, {length} values of "
                f"{dtype} were agreed"
            )
    values, small = torch.from_numpy(arrays["values"]), torch.from_numpy(arrays["small"])
    scales = torch.from_numpy(arrays["value_scales"]) if wire_dtype == "int8" else None
    tensors: dict[str, Tensor] = {}
    at = {"values": 0, "small": 0, "scales": 0}
    for name, shape in layout:
        number = math.prod(shape)
        if len(shape) < 2:
            tensors[name] = small[at["small"] : at["small"] + number].reshape(shape)
            at["small"] += number
        else:
            rows = values[at["values"] : at["values"] + number].reshape(shape[0], -1)
            own = None if scales is None else scales[at["scales"] : at["scales"] + shape[0]]
            try:
                tensors[name] = dequantise(rows, own, wire_dtype).reshape(shape)
            except QuantisationError as error:
                raise MessageError(f"tensor `{name}`: {error}") from None
            at["values"] += number
            at["scales"] += shape[0]
        _check_tensor(name, tensors[name], max_norm, update)
    return Weights(tensors)


def _check_tensor(name: str, tensor: Tensor, max_norm: float, update: bool) -> None:
    if not bool(tensor.isfinite().all()):
        raise MessageError(f"tensor `{name}` holds a value that is not finite")
    if name.endswith("running_var") and not update and bool((tensor < 0).any()):
        raise MessageError(f"tensor `{name}` holds a negative variance")
    if not name.endswith(STATISTICS) and float(tensor.double().norm()) > max_norm:
        raise MessageError(
            f"tensor `{name}` has norm {float(tensor.double().norm()):.3g}, above `max-prototype-norm` {max_norm:.3g}"
        )


# NumPy has no bfloat16: its bits travel as whole numbers
_STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}
