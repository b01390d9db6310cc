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
from protosphere.wire.checks import CodecError, MessageError
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
    """The limits of a received payload, besides its parts."""

    max_norm: float  # the largest norm of a vector or tensor; it is absolute, so that no majority can change it
    # part -> names and shapes of its weights; for a ragged part, the largest shapes
    layouts: Mapping[str, Layout] = field(default_factory=dict)


# --- the sender -----------------------------------------------------------------------------------------------


def encode(payload: Payload, parts: Sequence[Part] = ()) -> ArrayRecord:
    """Encode a payload as arrays; parts that the method does not declare are encoded by the defaults of their kind.

    Raises CodecError for a value that the number format cannot hold.
    """
    declared = {part.name: part for part in parts}
    arrays: dict[str, Array] = {}
    for name, values in payload.items():
        part = declared.get(name) or Part(values.kind, name)
        fields = {key: tensor.detach().cpu() for key, tensor in values.fields().items()}
        if isinstance(values, Weights):
            fields = _write_weights(fields, part)
        elif isinstance(values, PrototypeSet):
            names = [f"a prototype cannot be sent (class {label}):" for label in fields["labels"].tolist()]
            fields["vectors"] = _convert(fields["vectors"], part.dtype, names)
        else:
            _write_mixtures(fields, part)
        if "labels" in fields:
            labels = fields["labels"]
            fits = not len(labels) or int(labels.max()) <= torch.iinfo(torch.int16).max
            fields["labels"] = labels.to(torch.int16 if fits else torch.int32)
        for key, tensor in fields.items():
            arrays[f"{name}.{key}"] = Array(np.ascontiguousarray(tensor.numpy()))
    return ArrayRecord(arrays)


def _write_mixtures(fields: dict[str, Tensor], part: Part) -> None:
    for name in ("means", "variances", "weights"):
        fields[name] = fields[name].float()
    for name in ("variances", "weights"):
        # a variance or weight too small for float32 becomes its smallest normal number
        fields[name] = fields[name].clamp(min=SMALLEST)
    if part.width == 1:
        fields["variances"] = fields["variances"][:, :1]


def _write_weights(tensors: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    dtypes = {"values": part.dtype or "float32", "small": "float32"}
    pieces = {name: [torch.zeros(0, dtype=DTYPES[dtype])] for name, dtype in dtypes.items()}
    for name, tensor in tensors.items():
        key = _field_of(tensor.shape)
        rows = _convert(tensor.reshape(1, -1), dtypes[key], [f"weights cannot be sent: tensor `{name}`"])
        pieces[key].append(rows[0])
    fields = {key: torch.cat(tensors_of_field) for key, tensors_of_field in pieces.items()}
    if part.ragged:
        sizes = [size for tensor in tensors.values() for size in tensor.shape]
        fields["shapes"] = torch.tensor(sizes, dtype=torch.int32)
    return fields


def _convert(rows: Tensor, dtype: str, names: Sequence[str]) -> Tensor:
    """Convert rows (k, w) to a number format. A CodecError begins with the name of a row that it cannot hold."""
    target = DTYPES[dtype or "float32"]
    for row in (~rows.isfinite()).any(dim=1).nonzero().flatten().tolist():
        raise CodecError(
            f"{names[row]} holds NaN or infinity; the training that made it has diverged, so lower the learning-rate"
        )
    largest = torch.finfo(target).max
    fits = rows.abs().double() <= largest
    for row in (~fits).any(dim=1).nonzero().flatten().tolist():
        value = float(rows[row][~fits[row]][0])
        remedy = "choose the wire-dtype float32, or lower" if target == torch.float16 else "lower"
        raise CodecError(f"{names[row]} holds {value:.6g}, beyond {largest:.6g}; {remedy} the learning-rate")
    return rows.to(torch.float32, copy=True).to(target)


# --- the receiver ---------------------------------------------------------------------------------------------


def decode(
    record: ArrayRecord, parts: Sequence[Part], num_classes: int, dim: int, limits: Limits
) -> dict[str, PartValue]:
    """Check a received payload and return it as tensors on the CPU. A MessageError says what is wrong."""
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


def _check_form(name: str, array: NDArray[np.generic], dtype: str, shape: tuple[int, ...]) -> None:
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        raise MessageError(f"`{name}` is {array.dtype} of shape {array.shape}, {dtype} of {shape} was agreed")


def _read_prototypes(arrays: Arrays, part: Part, num_classes: int, dim: int, limits: Limits) -> PrototypeSet:
    vectors = arrays["vectors"]
    rows = min(len(vectors), num_classes) if vectors.ndim else 0
    _check_form("vectors", vectors, part.dtype or "float32", (rows, part.count_values(num_classes, dim)))
    labels = _read_labels(arrays["labels"], rows, num_classes, most=1)
    counts = _read_counts(arrays["counts"], rows) if part.counts else None
    values = torch.from_numpy(vectors).float()
    for row in (~values.isfinite()).any(dim=1).nonzero().flatten().tolist():
        raise MessageError(f"the vector of class {int(labels[row])} holds a value that is not finite")
    _check_norms(values, limits.max_norm)
    return PrototypeSet(labels, values, counts)


def _read_labels(labels: NDArray[np.generic], rows: int, num_classes: int, most: int | None) -> Tensor:
    """`most` is the largest number of rows per class; None: any number."""
    _check_form("labels", labels, "int32" if labels.dtype == np.int32 else "int16", (rows,))
    values = torch.from_numpy(labels).long()
    if rows and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
        raise MessageError(f"a label lies outside 0 to {num_classes - 1}")
    if bool((values.diff() < 0).any()):
        raise MessageError("the labels do not ascend")
    if rows and most is not None:
        components = values.bincount()
        if int(components.max()) > most:
            label = int(components.argmax())
            raise MessageError(f"class {label} has {int(components.max())} components, at most {most} were agreed")
    return values


def _read_counts(counts: NDArray[np.generic], rows: int) -> Tensor:
    _check_form("counts", counts, "int64", (rows,))
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
        _check_form(name, arrays[name], "float32", shape)
        tensors[name] = torch.from_numpy(arrays[name])
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
    _check_norms(torch.cat([means.double(), spread], dim=1), most)
    try:
        return MixtureSet(labels, means, variances, tensors["weights"], counts)
    except ValueError as error:
        raise MessageError(f"{str(error)[0].lower()}{str(error)[1:].rstrip('.')}") from None


def _check_norms(rows: Tensor, max_norm: float) -> None:
    norms = rows.double().norm(dim=1)
    if len(norms) and float(norms.max()) > max_norm:
        raise MessageError(f"a vector has norm {float(norms.max()):.3g}, above `max-prototype-norm` {max_norm:.3g}")


def _read_weights(arrays: Arrays, part: Part, limits: Limits) -> Weights:
    layout = limits.layouts.get(part.name)
    if layout is None:
        raise MessageError(f"weights of `{part.name}` came without an agreed layout")
    if part.ragged:
        layout = _read_shapes(arrays["shapes"], layout)
    lengths = {"values": 0, "small": 0}
    for _, shape in layout:
        lengths[_field_of(shape)] += math.prod(shape)
    _check_form("values", arrays["values"], part.dtype or "float32", (lengths["values"],))
    _check_form("small", arrays["small"], "float32", (lengths["small"],))

    tensors: dict[str, Tensor] = {}
    offsets = {"values": 0, "small": 0}
    for tensor_name, shape in layout:
        name, start = _field_of(shape), offsets[_field_of(shape)]
        offsets[name] += math.prod(shape)
        tensors[tensor_name] = torch.from_numpy(arrays[name][start : offsets[name]]).float().reshape(shape)
    check_tensors(tensors, limits.max_norm, part.signed)
    return Weights(tensors)


def _field_of(shape: Sequence[int]) -> str:
    return "values" if len(shape) > 1 else "small"


def _read_shapes(sizes: NDArray[np.generic], layout: Layout) -> Layout:
    """The layout of the received tensors, none of which may be larger than declared."""
    _check_form("shapes", sizes, "int32", (sum(len(shape) for _, shape in layout),))
    remaining = sizes.tolist()
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for name, largest in layout:
        shape, remaining = tuple(remaining[: len(largest)]), remaining[len(largest) :]
        if not all(0 <= size <= most for size, most in zip(shape, largest, strict=True)):
            raise MessageError(f"tensor `{name}` has shape {shape}, at most {largest} was agreed")
        shapes.append((name, shape))
    return tuple(shapes)


def check_tensors(tensors: Mapping[str, Tensor], max_norm: float, signed: bool = False) -> None:
    """Refuse received tensors with a value that is not finite, a negative running variance (unless `signed`), or a norm
    above `max_norm`. Running statistics have no norm bound, because their scale is that of the data."""
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise MessageError(f"tensor `{name}` holds a value that is not finite")
        if not signed and name.endswith(VARIANCE) and bool((tensor < 0).any()):
            raise MessageError(f"tensor `{name}` holds a negative variance")
        norm = float(tensor.double().norm())
        if not name.endswith(STATISTICS) and norm > max_norm:
            raise MessageError(f"tensor `{name}` has norm {norm:.3g}, above `max-prototype-norm` {max_norm:.3g}")


def read_array(name: str, array: Array) -> NDArray[np.generic]:
    """Read an array after comparing its header with the number of bytes: NumPy allocates whatever a header declares."""
    try:
        if array.stype != NUMPY:
            raise ValueError(f"it is serialised as {array.stype!r}, {NUMPY!r} was agreed")
        start = _values_start(array)
        shape, by_columns, dtype = _parse_header(array.data[:start])
        declared_bytes, actual_bytes = math.prod(shape) * dtype.itemsize, len(array.data) - start
        if declared_bytes != actual_bytes:
            raise ValueError(f"it declares {declared_bytes} bytes where {actual_bytes} came")
        values = np.frombuffer(array.data, dtype, offset=start)
        return values.reshape(shape, order="F" if by_columns else "C").copy(order="K")
    except Exception as error:
        # NumPy raises many kinds of errors for hostile bytes, including syntax and recursion errors
        raise MessageError(f"array `{name}` cannot be read ({error})") from None


def _values_start(array: Array) -> int:
    """Where the values begin, after the header of the .npy file."""
    return NPY + int.from_bytes(array.data[NPY - 2 : NPY], "little")


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
    """The bytes of the values alone, except for those of some parts, whatever the arrays declare."""
    total = 0
    for name, array in record.items():
        if name.rpartition(".")[2] in NO_VALUES or name.partition(".")[0] in without:
            continue
        total += max(0, len(array.data) - _values_start(array))
    return total
