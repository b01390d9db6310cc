"""Figures of many clients in columns: a parquet file a round, beside the line of metrics.jsonl that names it.

A row is a client, a column a figure by its path in the line, such as `clients/training/loss/cross-entropy` or
`time/train`; a list has a column for each place. Empty where a client has no such figure. `pandas.read_parquet` of the
folder gives all rounds.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

MANY = 200  # clients from which a line has its figures in columns: 123 kB a round as text, of 250 clients
FOLDER = "clients"  # in the run's
NAMED = "clients_in"  # key of a line: the file
BY_CLIENT = ("clients", "time/train", "time/evaluate", "time/client")  # what of a line is by client
# End the path of a list's length, since places may be empty, and of an empty table. No name has them: clients choose
# names, so these are quoted as in an URL.
LENGTH, NONE = "#", "{}"


def parted(line: Mapping[str, Any], many: int = MANY) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A line of metrics.jsonl without its figures by client, and these: partition -> path -> value; as it is, and
    nothing, for fewer clients than `many`."""
    found = {path: _at(line, path) for path in BY_CLIENT}
    if len({partition for values in found.values() for partition in values}) < many:
        return dict(line), {}
    rows: dict[str, dict[str, Any]] = {}
    short = dict(line) | {"clients": {}}
    if "time" in line:
        short["time"] = {name: part for name, part in line["time"].items() if f"time/{name}" not in BY_CLIENT}
    for path, values in found.items():
        for partition, value in values.items():
            rows.setdefault(partition, {}).update(_flat(path, value))
    return short, rows


def whole(line: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Inverse of `parted`."""
    found = {name: part for name, part in line.items() if name != NAMED} | {"clients": {}}
    for path in BY_CLIENT:
        values = {
            partition: _deep({name: value for name, value in row.items() if _below(name, path)}, path)
            for partition, row in rows.items()
        }
        known = {partition: value for partition, value in values.items() if value is not None}
        if path == "clients":
            found["clients"] = known
        elif known:
            found["time"] = found.get("time", {}) | {path.partition("/")[2]: known}
    return found


def write(path: Path, round_number: int, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """One round's rows, by ascending partition, seen to the disk."""
    import pyarrow
    import pyarrow.parquet

    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    ordered = sorted(rows, key=int)
    table: dict[str, list[Any]] = {
        "round": [round_number] * len(ordered),
        "partition": [int(partition) for partition in ordered],
    }
    table |= {name: [rows[partition].get(name) for partition in ordered] for name in names}
    with path.open("wb") as file:
        pyarrow.parquet.write_table(pyarrow.table(table), file)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Inverse of `write`.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    return {
        str(row.pop("partition")): {name: value for name, value in row.items() if name != "round" and value is not None}
        for row in rows
    }


def _at(line: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found: Any = line
    for name in path.split("/"):
        found = found.get(name, {})
    return dict(found)


def _below(name: str, path: str) -> bool:
    return name == path or name.startswith(path + "/")


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if value == {}:
        yield f"{path}/{NONE}", True
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(f"{path}/{quote(name, safe='')}", part)
    elif isinstance(value, list):
        yield f"{path}/{LENGTH}", len(value)
        for place, part in enumerate(value):
            yield from _flat(f"{path}/{place}", part)
    else:
        yield path, value


def _deep(row: Mapping[str, Any], path: str) -> Any:
    """The value at a path; None where there is nothing."""
    if path in row:
        return row[path]
    if f"{path}/{LENGTH}" in row:
        return [_deep(row, f"{path}/{place}") for place in range(row[f"{path}/{LENGTH}"])]
    if f"{path}/{NONE}" in row:
        return {}
    names = dict.fromkeys(name[len(path) + 1 :].partition("/")[0] for name in row if name.startswith(path + "/"))
    return {unquote(name): _deep(row, f"{path}/{name}") for name in names} or None
