"""An upload, spoilt in one of the ways of `plan.CORRUPTED`."""

import math
from collections.abc import Callable
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord

Arrays = tuple[np.ndarray, np.ndarray]  # labels (k,), vectors (k, d)


def spoilt(payload: ArrayRecord, kind: str, rng: np.random.Generator) -> ArrayRecord:
    """The upload as it shall cross in its place."""
    if kind in BITS:
        name, where = BITS[kind]
        data = _flipped(bytes(payload[name].data), where, rng)
        return _with(payload, name, data)
    if kind == "a header that lies":
        return _with(payload, "vectors", _lying(payload["vectors"].numpy()))
    labels, vectors = CHANGES[kind](payload["labels"].numpy(), payload["vectors"].numpy(), rng)
    return ArrayRecord({"labels": Array(np.ascontiguousarray(labels)), "vectors": Array(np.ascontiguousarray(vectors))})


def _with(payload: ArrayRecord, name: str, data: bytes) -> ArrayRecord:
    """The same arrays but for the bytes of one; what Flower says of its form stays."""
    arrays = {key: Array(a.dtype, tuple(a.shape), a.stype, bytes(a.data)) for key, a in payload.items()}
    was = arrays[name]
    return ArrayRecord(arrays | {name: Array(was.dtype, tuple(was.shape), was.stype, data)})


def _flipped(data: bytes, where: str, rng: np.random.Generator) -> bytes:
    """Three bits turned over, in the header or behind it."""
    header = 10 + int.from_bytes(data[8:10], "little")
    first, last = (0, header) if where == "header" else (header, len(data))
    changed = bytearray(data)
    for place in rng.integers(first, last, size=3):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _lying(vectors: np.ndarray) -> bytes:
    """A few bytes that call themselves terabytes."""
    file = BytesIO()
    header = {"descr": vectors.dtype.str, "fortran_order": False, "shape": (1 << 40, vectors.shape[1])}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + vectors.tobytes()


def _nan(labels: np.ndarray, vectors: np.ndarray, rng: np.random.Generator) -> Arrays:
    vectors = vectors.copy()
    vectors[rng.integers(len(vectors)), rng.integers(vectors.shape[1])] = math.nan
    return labels, vectors


def _beyond(labels: np.ndarray, vectors: np.ndarray, rng: np.random.Generator) -> Arrays:
    return np.append(labels[:-1], labels.dtype.type(10 + rng.integers(1000))), vectors


def _negative(labels: np.ndarray, vectors: np.ndarray, rng: np.random.Generator) -> Arrays:
    return np.append(labels.dtype.type(-1 - rng.integers(1000)), labels[1:]), vectors


BITS = {
    "bits of the values": ("vectors", "data"),
    "bits of the labels": ("labels", "data"),
    "bits of a header": ("vectors", "header"),
}
CHANGES: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], Arrays]] = {
    "another width": lambda labels, vectors, rng: (labels, vectors[:, :-1]),
    "another rank": lambda labels, vectors, rng: (labels, vectors[None]),
    "a label too many": lambda labels, vectors, rng: (np.append(labels, labels[-1:]), vectors),
    "NaN": _nan,
    "a label beyond K": _beyond,
    "a negative label": _negative,
    "a thousand times the rows": lambda labels, vectors, rng: (np.tile(labels, 1000), np.tile(vectors, (1000, 1))),
}
