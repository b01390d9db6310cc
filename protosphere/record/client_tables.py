"""Figures by client: a parquet file a round in `clients/` of the run's folder, beside the line of metrics.jsonl that
names it. Earlier versions had them in the line where there were fewer than 200 clients.

A row is a client, a column a figure by its path in the line, such as `clients/training/loss/cross-entropy` or
`time/train`; a list has a column for each place. Empty where a client has no such figure. `pandas.read_parquet` of the
folder gives all rounds.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from protosphere.core.errors import SettingError
from protosphere.core.files import LARGEST_RECORD, read_whole

FOLDER = "clients"  # in the run's
NAMED, DIGEST = "clients_in", "clients_sha256"  # keys of a line: the file, and its digest
TIMES = ("train", "evaluate", "client")  # what of a line's `time` is by client
# End the path of a list's length, since places may be empty, and of an empty table. No name has them: clients choose
# names, so these are quoted as in an URL.
LENGTH, NONE = "#", "{}"


def split_line(line: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A line of metrics.jsonl without its figures by client, and these: partition -> path -> value."""
    short = dict(line) | {"clients": {}}
    values_by_path = {"clients": line.get("clients", {})}
    if "time" in line:
        short["time"] = {name: part for name, part in line["time"].items() if name not in TIMES}
        values_by_path |= {f"time/{name}": line["time"].get(name, {}) for name in TIMES}
    rows: dict[str, dict[str, Any]] = {}
    for path, values in values_by_path.items():
        for partition, value in values.items():
            rows.setdefault(partition, {}).update(_flatten(path, value))
    return (short, rows) if rows else (dict(line), {})


class LazyMapping(Mapping[str, Any]):
    """A mapping of which some values are read whenever they are asked for, and never kept: the figures by client of
    10,000 clients take 31 MB a round.

    Args:
        values: the others. readers: name -> what reads its value, a mapping; may raise SettingError.
    """

    def __init__(self, values: Mapping[str, Any], readers: Mapping[str, Callable[[], Any]]):
        self._values: dict[str, Any] = {**{name: {} for name in readers}, **values}
        self._readers = readers

    def __getitem__(self, name: str) -> Any:
        return self._readers[name]() if name in self._readers else self._values[name]

    def without_reading(self) -> dict[str, Any]:
        """All names; what would have to be read is empty."""
        return self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def join_line(line: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Inverse of `split_line`, of a line and the file that it names, which is not read before a figure is asked for."""

    def reader(column: str) -> Callable[[], Any]:
        return partial(read, path, column, line.get(DIGEST))

    short = {name: part for name, part in line.items() if name not in (NAMED, DIGEST)}
    if "time" in short:
        short["time"] = LazyMapping(short["time"], {name: reader(f"time/{name}") for name in TIMES})
    return LazyMapping(short, {"clients": reader("clients")})


def write(path: Path, round_number: int, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One round's rows, by ascending partition.

    Returns:
        The file's SHA-256.
    """
    import pyarrow
    import pyarrow.parquet

    partitions = sorted(rows, key=int)
    columns: dict[str, list[Any]] = {
        "round": [round_number] * len(rows),
        "partition": [int(partition) for partition in partitions],
    }
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        columns[name] = [rows[partition].get(name) for partition in partitions]
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink, write_page_checksum=True)
    content = sink.getvalue()
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read(path: Path, under: str, digest: str | None = None) -> dict[str, Any]:
    """Partition -> what a client has under a path of a line; those that have nothing there are left out.

    Args:
        digest: the file's, as its line has it; None in lines of an earlier version.

    Raises:
        SettingError: it cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        content = read_whole(path, LARGEST_RECORD)
        # the checksums of its pages are not of what tells of the pages
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("its bytes are not those that were written")
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True) as file:
            names = [name for name in file.schema_arrow.names if name == under or name.startswith(under + "/")]
            rows = file.read(columns=["partition", *names]).to_pylist()
        values = {str(row.pop("partition")): _nest(row, under) for row in rows}
        return {partition: value for partition, value in values.items() if value is not None}
    except (OSError, ValueError, KeyError, IndexError, TypeError, pyarrow.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise SettingError(f"{path} cannot be read ({problem}); bring it back, or start a new run.") from None


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if value == {}:
        yield f"{path}/{NONE}", True
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flatten(f"{path}/{quote(name, safe='')}", part)
    elif isinstance(value, list):
        yield f"{path}/{LENGTH}", len(value)
        for place, part in enumerate(value):
            yield from _flatten(f"{path}/{place}", part)
    else:
        yield path, value


def _nest(row: Mapping[str, Any], under: str) -> Any:
    """What columns of one row hold below a path; None where there is nothing."""
    tree: dict[str, Any] = {}
    for column, value in row.items():
        if value is None:
            continue
        if column == under:
            return value
        *tables, name = column.removeprefix(under + "/").split("/")
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
        node[name] = value
    return _restored(tree) if tree else None


def _restored(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if LENGTH in tree:
        return [_restored(tree.get(str(place))) for place in range(tree[LENGTH])]
    return {unquote(name): _restored(part) for name, part in tree.items() if name != NONE}
