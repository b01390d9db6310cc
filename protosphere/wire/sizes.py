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
    return {name: _record(record) for name, record in records.items()}


def together(found: Measured, without: tuple[str, ...] = ()) -> int:
    """`wire_bytes` of records that were measured.

    Flower sends a record as a tree of objects, each serialised by itself; their sizes add up, and objects that are
    alike cross once.
    """
    kept = {name: sized for name, sized in found.items() if name not in without}
    sizes = dict(kept.values())
    return _framed(RecordDict, len(sizes), _json(dict.fromkeys(kept, NAME))) + sum(sizes.values())


def record_bytes(record: Any) -> int:
    """Size of one record, serialised."""
    return _record(record)[1]


def _record(record: Any) -> tuple[Hashable, int]:
    """What tells a record from others, and its bytes."""
    if not isinstance(record, ArrayRecord):
        whole = record.deflate()
        return whole, len(whole)
    named = {name: _array(array) for name, array in record.items()}
    sizes = dict(named.values())
    own = _framed(ArrayRecord, len(sizes), _json(dict.fromkeys(named, NAME)))
    return tuple((name, key) for name, (key, _) in named.items()), own + sum(sizes.values())


def _array(array: Array) -> tuple[Hashable, int]:
    pieces = [array.data[start : start + CHUNK] for start in range(0, len(array.data), CHUNK)]
    place = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    told = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
    own = _framed(Array, len(place), _json(told | {"arraychunk_ids": [place[piece] for piece in pieces]}))
    # a chunk's type is no part of Flower's public names
    chunks = (_frame("ArrayChunk", 0, len(piece)) + len(piece) for piece in place)
    return (*map(str, told.values()), *pieces), own + sum(chunks)


def _framed(kind: type, children: int, body: int) -> int:
    return _frame(kind.__qualname__, children, body) + body


def _frame(kind: str, children: int, body: int) -> int:
    """Kind, the children's names with commas between, the body's length, and three marks between these and the body."""
    return len(kind) + max(children * (len(NAME) + 1) - 1, 0) + len(str(body)) + 3


def _json(value: Any) -> int:
    return len(json.dumps(value).encode())
