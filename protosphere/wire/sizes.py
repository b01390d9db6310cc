"""The bytes of a message by part, as Flower's `count_bytes` counts a record: values and keys, without the frame around
them. Flower's own function fails for an empty text or list."""

from typing import Any

from flwr.app import Array, ConfigRecord, RecordDict

NUMBER = 8  # bytes of a number in protobuf


def bytes_by_part(records: RecordDict) -> dict[str, int]:
    """Part -> bytes. The part of arrays and metrics is the text before the first dot of their names; `config` is
    everything else."""
    sizes: dict[str, int] = {}
    for record in records.values():
        for key, value in record.items():
            part = "config" if isinstance(record, ConfigRecord) else key.partition(".")[0]
            sizes[part] = sizes.get(part, 0) + len(key) + _count_bytes(value)
    return sizes


def _count_bytes(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_count_bytes, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else NUMBER
