"""What a message costs on the wire, from the lengths of its parts: to serialise one only to count it took a sixth of a
small client's round. Where Flower frames its parts in another way than we know, they are serialised and counted."""

import json
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from protosphere.core.flower import CHUNK, CHUNK_KIND, OBJECT_NAME, array_body, frame_bytes

Measured = Mapping[str, tuple[Hashable, int]]  # what tells a record from others, and its bytes


def wire_bytes(records: RecordDict, without: tuple[str, ...] = ()) -> int:
    """Size of the serialised records, the metadata of the message apart."""
    return together(measured(records), without)


def measured(records: RecordDict) -> Measured:
    """Each record's size, for `together`: to serialise one for each sum that it is part of took as long as the reply's
    checks."""
    return {name: _measure_record(record) for name, record in records.items()}


def together(record_sizes: Measured, without: tuple[str, ...] = ()) -> int:
    """`wire_bytes` of records that were measured.

    Flower sends a record as a tree of objects, each serialised by itself; their sizes add up, and objects that are
    alike cross once.
    """
    selected = {name: size for name, size in record_sizes.items() if name not in without}
    sizes = dict(selected.values())
    names = _measure_json(dict.fromkeys(selected, OBJECT_NAME))
    return _measure_framed(RecordDict, len(sizes), names) + sum(sizes.values())


def record_bytes(record: Any) -> int:
    """Size of one record, serialised."""
    return _measure_record(record)[1]


def _measure_record(record: Any) -> tuple[Hashable, int]:
    """What tells a record from others, and its bytes."""
    if not isinstance(record, ArrayRecord) or not _is_framed_as_known():
        return _measure_serialised(record)
    return _measure_arrays(record)


@cache
def _is_framed_as_known() -> bool:
    """Whether lengths give the bytes that Flower itself makes of a record; asked once a process."""
    arrays = {"a": Array("float32", (2, 3), "numpy.ndarray", bytes(24)), "ä": Array("uint8", (0,), "x", b"")}
    sample = ArrayRecord(arrays)
    return _measure_arrays(sample)[1] == _measure_serialised(sample)[1]


def _measure_serialised(record: Any) -> tuple[Hashable, int]:
    """By what Flower makes of it and of each of its parts, those that are alike once."""
    serialised = record.deflate()
    found, waiting = {serialised: len(serialised)}, list((record.children or {}).values())
    while waiting:
        part = waiting.pop()
        content = part.deflate()
        found[content] = len(content)
        waiting.extend((part.children or {}).values())
    return serialised, sum(found.values())


def _measure_arrays(record: ArrayRecord) -> tuple[Hashable, int]:
    named = {name: _measure_array(array) for name, array in record.items()}
    sizes = dict(named.values())
    own = _measure_framed(ArrayRecord, len(sizes), _measure_json(dict.fromkeys(named, OBJECT_NAME)))
    return tuple((name, key) for name, (key, _) in named.items()), own + sum(sizes.values())


def _measure_array(array: Array) -> tuple[Hashable, int]:
    pieces = [array.data[start : start + CHUNK] for start in range(0, len(array.data), CHUNK)]
    indices = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    body = array_body(array.dtype, array.shape, array.stype, [indices[piece] for piece in pieces])
    own = _measure_framed(Array, len(indices), _measure_json(body))
    chunks = (frame_bytes(CHUNK_KIND, 0, len(piece)) + len(piece) for piece in indices)
    return (array.dtype, str(array.shape), array.stype, *pieces), own + sum(chunks)


def _measure_framed(kind: type, children: int, body: int) -> int:
    return frame_bytes(kind.__qualname__, children, body) + body


def _measure_json(value: Any) -> int:
    return len(json.dumps(value).encode())
