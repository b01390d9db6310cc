"""What a message costs on the wire, from the lengths of its parts: to serialise one only to count it took a sixth of a
small client's round."""

import json
import os
from collections.abc import Hashable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

CHUNK = int(os.getenv("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", str(5 << 20)))  # Flower cuts an array's bytes so
NAME = "0" * 64  # as long as the hash by which Flower names an object
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
    return _measure_framed(RecordDict, len(sizes), _measure_json(dict.fromkeys(selected, NAME))) + sum(sizes.values())


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
    frame_bytes = _measure_framed(ArrayRecord, len(sizes), _measure_json(dict.fromkeys(named, NAME)))
    return tuple((name, key) for name, (key, _) in named.items()), frame_bytes + sum(sizes.values())


def _measure_array(array: Array) -> tuple[Hashable, int]:
    pieces = [array.data[start : start + CHUNK] for start in range(0, len(array.data), CHUNK)]
    indices = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    metadata = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
    frame_bytes = _measure_framed(
        Array, len(indices), _measure_json(metadata | {"arraychunk_ids": [indices[piece] for piece in pieces]})
    )
    # a chunk's type is no part of Flower's public names
    chunks = (_measure_frame("ArrayChunk", 0, len(piece)) + len(piece) for piece in indices)
    return (*map(str, metadata.values()), *pieces), frame_bytes + sum(chunks)


def _measure_framed(kind: type, children: int, body: int) -> int:
    return _measure_frame(kind.__qualname__, children, body) + body


def _measure_frame(kind: str, children: int, body: int) -> int:
    """Kind, the children's names with commas between, the body's length, and three marks between these and the body."""
    return len(kind) + max(children * (len(NAME) + 1) - 1, 0) + len(str(body)) + 3


def _measure_json(value: Any) -> int:
    return len(json.dumps(value).encode())
