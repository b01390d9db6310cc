"""What a message costs on the wire, from the lengths of its parts: to serialise one only to count it took a sixth of a
small client's round."""

import json
from collections.abc import Hashable, Mapping
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
    if not isinstance(record, ArrayRecord):
        serialised = record.deflate()
        return serialised, len(serialised)
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
