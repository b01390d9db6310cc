"""Converts a payload to one ArrayRecord of arrays `<part>.<field>` and back. Everything received is checked first:

    prototypes   labels, vectors, counts            as many rows as classes, in the part's number format
    mixtures     labels, means, variances, weights, counts                                        float32
    weights      values: tensors of two dimensions or more, in the part's format; small: the others, float32; shapes

Arrays are one a field, never one a class or a tensor: Flower sends each as a message of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PartValue, PrototypeSet
from protosphere.prototypes.weights import STATISTICS, VARIANCE, Layout, Weights
from protosphere.wire.checks import CodecError, MessageError, check_norms
from protosphere.wire.parts import Part
from protosphere.wire.payloads import Payload

Arrays = Mapping[str, NDArray[np.generic]]  # the arrays of one part, by field
DTYPES = {"float32": torch.float32, "float16": torch.float16}
MOST_COUNT = np.iinfo(np.int32).max  # so that no sum of counts can overflow
SMALLEST = torch.finfo(torch.float32).tiny
FLOAT32_ROUNDING = 1e-5
NO_VALUES = ("labels", "counts", "shapes")  # fields that do not count as payload
NUMPY = "numpy.ndarray"  # Flower's name for it
NPY = 10  # bytes of an .npy file before its header: magic, version, the header's length


@dataclass(frozen=True)
class Limits:
    """The limits of a received payload, besides its parts.

    Attributes:
        max_norm: the largest Euclidean norm of a vector or tensor. It is absolute, so that no majority can change it.
        layouts: part -> names and shapes of its weights; for a ragged part, the largest shapes.
    """

    max_norm: float
    layouts: Mapping[str, Layout] = field(default_factory=dict)


# --- the sender -----------------------------------------------------------------------------------------------


def encode(payload: Payload, parts: Sequence[Part] = ()) -> ArrayRecord:
    """Encode a payload as arrays.

    Args:
        parts: the parts that the method declares; other parts are encoded by the defaults of their kind.

    Raises:
        CodecError: a value that the number format cannot hold.
    """
    declared = {part.name: part for part in parts}
    arrays: dict[str, Array] = {}
    for name, values in payload.items():
        part = declared.get(name) or Part(values.kind, name)
        for field_name, tensor in _write(values, part).items():
            arrays[f"{name}.{field_name}"] = Array(np.ascontiguousarray(tensor.numpy()))
    return ArrayRecord(arrays)


def _write(values: PartValue, part: Part) -> dict[str, Tensor]:
    fields = {name: tensor.detach().cpu() for name, tensor in values.fields().items()}
    if isinstance(values, Weights):
        return _write_weights(fields, part)
    labels = fields["labels"]
    fits = not len(labels) or int(labels.max()) <= torch.iinfo(torch.int16).max
    fields["labels"] = labels.to(torch.int16 if fits else torch.int32)
    if isinstance(values, PrototypeSet):
        names = [f"a prototype cannot be sent (class {label}):" for label in labels.tolist()]
        fields["vectors"] = _convert(fields["vectors"], part.dtype, names)
        return fields
    for name in ("means", "variances", "weights"):
        fields[name] = fields[name].float()
    for name in ("variances", "weights"):
        # a variance or weight too small for float32 becomes its smallest normal number
        fields[name] = fields[name].clamp(min=SMALLEST)
    if part.width == 1:
        fields["variances"] = fields["variances"][:, :1]
    return fields


def _write_weights(tensors: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    large = [torch.zeros(0, dtype=DTYPES[part.dtype or "float32"])]
    small = [torch.zeros(0)]
    for name, tensor in tensors.items():
        what = f"weights cannot be sent: tensor `{name}`"
        if tensor.dim() < 2:
            small.append(_convert(tensor.reshape(1, -1), "float32", [what])[0])
        else:
            large.append(_convert(tensor.reshape(1, -1), part.dtype, [what])[0])
    fields = {"values": torch.cat(large), "small": torch.cat(small)}
    if part.ragged:
        sizes = [size for tensor in tensors.values() for size in tensor.shape]
        fields["shapes"] = torch.tensor(sizes, dtype=torch.int32)
    return fields


def _convert(rows: Tensor, dtype: str, names: Sequence[str]) -> Tensor:
    """Convert rows (k, w) to a number format.

    Args:
        names: names of the rows, as a sentence begins.

    Raises:
        CodecError: names the first row that the format cannot hold.
    """
    target = DTYPES[dtype or "float32"]
    for row in (~rows.isfinite()).any(dim=1).nonzero().flatten().tolist():
        raise CodecError(
            f"{names[row]} holds NaN or infinity; the training that made it has diverged, so lower the learning-rate"
        )
    largest = torch.finfo(target).max
    for row in (rows.abs().double() > largest).any(dim=1).nonzero().flatten().tolist():
        remedy = "choose the wire-dtype float32" if target == torch.float16 else "lower the learning-rate"
        value = float(rows[row].abs().max())
        raise CodecError(
            f"{names[row]} holds {value:.6g}, beyond {largest:.6g}, the largest number of {dtype}; {remedy}"
        )
    return rows.to(torch.float32, copy=True).to(target)


# --- the receiver ---------------------------------------------------------------------------------------------


def decode(
    record: ArrayRecord, parts: Sequence[Part], num_classes: int, dim: int, limits: Limits
) -> dict[str, PartValue]:
    """Check a received payload and return it as tensors on the CPU.

    Raises:
        MessageError: names what is wrong: arrays, dtype, shape, label, count, a value that is not finite, a norm; for
            mixtures also a variance, a weight or the number of components.
    """
    fields = {part.name: _list_fields(part) for part in parts}
    expected = sorted(f"{name}.{field_name}" for name, names in fields.items() for field_name in names)
    if sorted(record) != expected:
        raise MessageError(f"the payload holds the arrays {sorted(record)} where {expected} belong")
    payload: dict[str, PartValue] = {}
    for part in parts:
        arrays = {name: read_array(f"{part.name}.{name}", record[f"{part.name}.{name}"]) for name in fields[part.name]}
        if part.kind == "weights":
            payload[part.name] = _read_weights(arrays, part, limits)
        elif part.kind == "mixtures":
            payload[part.name] = _read_mixtures(arrays, part, num_classes, dim, limits)
        else:
            payload[part.name] = _read_prototypes(arrays, part, num_classes, dim, limits)
    return payload


def _list_fields(part: Part) -> list[str]:
    if part.kind == "weights":
        return ["values", "small", *(["shapes"] if part.ragged else [])]
    values = ["vectors"] if part.kind == "prototypes" else ["means", "variances", "weights"]
    return ["labels", *values, *(["counts"] if part.counts else [])]


def _read_prototypes(arrays: Arrays, part: Part, num_classes: int, dim: int, limits: Limits) -> PrototypeSet:
    vectors, width, dtype = arrays["vectors"], part.count_values(num_classes, dim), np.dtype(part.dtype or "float32")
    if vectors.dtype != dtype:
        raise MessageError(f"the vectors are {vectors.dtype}, {dtype} was agreed")
    if vectors.ndim != 2 or vectors.shape[1] != width or len(vectors) > num_classes:
        raise MessageError(
            f"the vectors have shape {vectors.shape}, at most {num_classes} rows of {width} values were agreed"
        )
    labels = _read_labels(arrays["labels"], len(vectors), num_classes, most=1)
    counts = _read_counts(arrays["counts"], len(vectors)) if part.counts else None
    rows = torch.from_numpy(vectors).float()
    for row in (~rows.isfinite()).any(dim=1).nonzero().flatten().tolist():
        raise MessageError(f"the vector of class {int(labels[row])} holds a value that is not finite")
    check_norms(rows, limits.max_norm)
    return PrototypeSet(labels, rows, counts)


def _read_labels(labels: NDArray[np.generic], rows: int, num_classes: int, most: int | None) -> Tensor:
    """`most` is the largest number of rows per class; None: any number."""
    if labels.dtype not in (np.int16, np.int32) or labels.shape != (rows,):
        raise MessageError(f"the labels are {labels.dtype} of shape {labels.shape}, {rows} integers were due")
    values = torch.from_numpy(labels).long()
    if rows and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
        raise MessageError(f"a label lies outside 0 to {num_classes - 1}")
    steps = values.diff()
    if most == 1 and bool((steps <= 0).any()):
        raise MessageError("the labels are not unique and ascending")
    if bool((steps < 0).any()):
        raise MessageError("the labels do not ascend")
    if rows and most is not None:
        components = values.bincount()
        if int(components.max()) > most:
            raise MessageError(
                f"class {int(components.argmax())} has {int(components.max())} components, at most {most} were agreed"
            )
    return values


def _read_counts(counts: NDArray[np.generic], rows: int) -> Tensor:
    if counts.dtype != np.int64 or counts.shape != (rows,):
        raise MessageError(f"the class counts are not {rows} int64 numbers")
    values = torch.from_numpy(counts)
    if rows and not 1 <= int(values.min()) <= int(values.max()) <= MOST_COUNT:
        raise MessageError(f"a class count lies outside 1 to {MOST_COUNT}")
    return values


def _read_mixtures(arrays: Arrays, part: Part, num_classes: int, dim: int, limits: Limits) -> MixtureSet:
    rows = arrays["labels"].size
    labels = _read_labels(arrays["labels"], rows, num_classes, part.components)
    counts = _read_counts(arrays["counts"], rows) if part.counts else None
    shapes = {"means": (rows, dim), "variances": (rows, part.count_values(num_classes, dim)), "weights": (rows,)}
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        array = arrays[name]
        if array.dtype != np.float32 or array.shape != shape:
            raise MessageError(f"the {name} are {array.dtype} of shape {array.shape}, float32 of {shape} were agreed")
        tensors[name] = torch.from_numpy(array)
        if not bool(tensors[name].isfinite().all()):
            raise MessageError(f"the {name} hold a number that is not finite")
    for name in ("variances", "weights"):
        if bool((tensors[name] < SMALLEST).any()):
            raise MessageError(f"the payload holds a {name[:-1]} that is not above 0, or too small for float32")
    means, variances = tensors["means"], tensors["variances"].expand_as(tensors["means"]).contiguous()
    # The bound is on the mean square of a component's features. Fusion by moments does not exceed that of its parts, so
    # legal uploads never make a download that clients refuse, apart from rounding to float32.
    spread = variances.double().sum(dim=1, keepdim=True).sqrt()
    most = limits.max_norm * (1 + FLOAT32_ROUNDING if part.components is None else 1)
    check_norms(torch.cat([means.double(), spread], dim=1), most)
    try:
        return MixtureSet(labels, means, variances, tensors["weights"], counts)
    except ValueError as error:
        raise MessageError(f"{str(error)[0].lower()}{str(error)[1:].rstrip('.')}") from None


def _read_weights(arrays: Arrays, part: Part, limits: Limits) -> Weights:
    layout = limits.layouts.get(part.name)
    if layout is None:
        raise MessageError(f"weights of `{part.name}` came without an agreed layout")
    if part.ragged:
        layout = _read_shapes(arrays["shapes"], layout)
    dtypes = {"values": np.dtype(part.dtype or "float32"), "small": np.dtype("float32")}
    lengths = dict.fromkeys(dtypes, 0)
    for _, shape in layout:
        lengths[_field_of(shape)] += math.prod(shape)
    for name, length in lengths.items():
        if arrays[name].dtype != dtypes[name] or arrays[name].shape != (length,):
            raise MessageError(
                f"the array `{name}` is {arrays[name].dtype} of shape {arrays[name].shape}, {length} values of "
                f"{dtypes[name]} were agreed"
            )

    tensors: dict[str, Tensor] = {}
    offsets = dict.fromkeys(dtypes, 0)
    for tensor_name, shape in layout:
        name, length = _field_of(shape), math.prod(shape)
        values = arrays[name][offsets[name] : offsets[name] + length]
        tensors[tensor_name] = torch.from_numpy(values).float().reshape(shape)
        offsets[name] += length
    check_tensors(tensors, limits.max_norm, part.signed)
    return Weights(tensors)


def _field_of(shape: Sequence[int]) -> str:
    return "values" if len(shape) > 1 else "small"


def _read_shapes(sizes: NDArray[np.generic], layout: Layout) -> Layout:
    """The layout of the received tensors, none of which may be larger than declared."""
    number = sum(len(shape) for _, shape in layout)
    if sizes.dtype != np.int32 or sizes.shape != (number,):
        raise MessageError(
            f"the array `shapes` is {sizes.dtype} of shape {sizes.shape}, {number} values of int32 were agreed"
        )
    remaining = sizes.tolist()
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for name, largest in layout:
        shape, remaining = tuple(remaining[: len(largest)]), remaining[len(largest) :]
        if not all(0 <= size <= most for size, most in zip(shape, largest, strict=True)):
            raise MessageError(f"tensor `{name}` has shape {shape}, at most {largest} was agreed")
        shapes.append((name, shape))
    return tuple(shapes)


def check_tensors(tensors: Mapping[str, Tensor], max_norm: float, signed: bool = False) -> None:
    """Refuse received tensors with a value that is not finite, a negative running variance, or a norm above `max_norm`.
    Running statistics have no norm bound, because their scale is that of the data.

    Args:
        signed: whether a variance may be negative.
    """
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise MessageError(f"tensor `{name}` holds a value that is not finite")
        if not signed and name.endswith(VARIANCE) and bool((tensor < 0).any()):
            raise MessageError(f"tensor `{name}` holds a negative variance")
        norm = float(tensor.double().norm())
        if not name.endswith(STATISTICS) and norm > max_norm:
            raise MessageError(f"tensor `{name}` has norm {norm:.3g}, above `max-prototype-norm` {max_norm:.3g}")


def read_array(name: str, array: Array) -> NDArray[np.generic]:
    """Read an array after comparing its header with the number of bytes, since NumPy allocates whatever a header
    declares."""
    try:
        if array.stype != NUMPY:
            raise ValueError(f"it is serialised as {array.stype!r}, {NUMPY!r} was agreed")
        start = NPY + int.from_bytes(array.data[NPY - 2 : NPY], "little")
        shape, by_columns, dtype = _parse_header(array.data[:start])
        declared_bytes, actual_bytes = math.prod(shape) * dtype.itemsize, len(array.data) - start
        if declared_bytes != actual_bytes:
            raise ValueError(f"it declares {declared_bytes} bytes where {actual_bytes} came")
        values = np.frombuffer(array.data, dtype, offset=start)
        return values.reshape(shape, order="F" if by_columns else "C").copy(order="K")
    except Exception as error:
        # NumPy raises many kinds of errors for hostile bytes, including syntax and recursion errors
        raise MessageError(f"array `{name}` cannot be read ({error})") from None


# NumPy parses a header as Python, which takes longer than reading a small array; most headers are equal.
@lru_cache(maxsize=256)
def _parse_header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """(shape, whether it is in Fortran order, dtype) from the header of an .npy file."""
    buffer = BytesIO(start)
    version = np.lib.format.read_magic(buffer)
    if version != (1, 0):
        raise ValueError(f"it is of .npy version {version}, (1, 0) was agreed")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(buffer)
    return shape, by_columns, dtype


def value_bytes(record: ArrayRecord, without: Sequence[str] = ()) -> int:
    """The bytes of the values alone, whatever the arrays declare and whether or not they decode.

    Args:
        without: parts that are not counted.
    """
    total = 0
    for name, array in record.items():
        if name.rpartition(".")[2] in NO_VALUES or name.partition(".")[0] in without:
            continue
        # the bytes after the header of an .npy file
        total += max(0, len(array.data) - NPY - int.from_bytes(array.data[NPY - 2 : NPY], "little"))
    return total
