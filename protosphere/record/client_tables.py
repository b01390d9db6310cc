"""Figures of many clients in columns: a parquet file a round, beside the line of metrics.jsonl that names it.

A row is a client, a column a figure by its path in the line, such as `clients/training/loss/cross-entropy` or
`time/train`; a list has a column for each place. Empty where a client has no such figure. `pandas.read_parquet` of the
folder gives all rounds.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from protosphere.core.errors import SettingError
from protosphere.core.files import LARGEST_RECORD, read_whole

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

MANY = 200  # clients from which a line has its figures in columns: 123 kB a round as text, of 250 clients
FOLDER = "clients"  # in the run's
NAMED, DIGEST = "clients_in", "clients_sha256"  # keys of a line: the file, and its digest
BY_CLIENT = ("clients", "time/train", "time/evaluate", "time/client")  # what of a line is by client
# End the path of a list's length, since places may be empty, and of an empty table. No name has them: clients choose
# names, so these are quoted as in an URL.
LENGTH, NONE = "#", "{}"
HERE = "/"  # in a tree of columns by the parts of their names, where no name has one: the column of this path itself
Tree = dict[str, Any]


def parted(line: Mapping[str, Any], many: int = MANY) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A line of metrics.jsonl without its figures by client, and these: partition -> path -> value; as it is, and
    nothing, for fewer clients than `many`."""
    values_by_path = {path: _at(line, path) for path in BY_CLIENT}
    if len({partition for values in values_by_path.values() for partition in values}) < many:
        return dict(line), {}
    rows: dict[str, dict[str, Any]] = {}
    short = dict(line) | {"clients": {}}
    if "time" in line:
        short["time"] = {name: part for name, part in line["time"].items() if f"time/{name}" not in BY_CLIENT}
    for path, values in values_by_path.items():
        for partition, value in values.items():
            rows.setdefault(partition, {}).update(_flatten(path, value))
    return short, rows


class Beside(Mapping[str, Any]):
    """A part of a line whose figures by client lie in a file, which is read whenever one of them is asked for and never
    kept: a run of 10,000 clients takes 31 MB a round.

    Args:
        line: what is at hand. column_of: name -> path in the file; a name of which it has no column is none.

    Raises:
        SettingError: when the file is read, and cannot be.
    """

    def __init__(self, line: Mapping[str, Any], column_of: Mapping[str, str], path: Path, digest: str | None):
        self._line, self._column_of, self._path, self._digest = line, column_of, path, digest

    def __getitem__(self, name: str) -> Any:
        if name not in self._column_of:
            return self._line[name]
        values = read(self._path, self._column_of[name], self._digest)
        return {partition: value for partition, value in values.items() if value is not None}

    def __contains__(self, name: object) -> bool:
        return name in self._line or name in self._column_of

    def at_hand(self) -> dict[str, Any]:
        """All names, without a look into the file: what lies there is empty."""
        return {name: {} if name in self._column_of else self._line[name] for name in self}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._line, *self._column_of)))

    def __len__(self) -> int:
        return len(self._line.keys() | self._column_of.keys())


def whole(line: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Inverse of `parted`, of a line and the file that it names.

    Raises:
        SettingError: the file cannot be read.
    """
    digest = line.get(DIGEST)
    columns = _columns(path, digest)
    paths = [path for path in BY_CLIENT if any(_below(name, path) for name in columns)]
    times = {path.partition("/")[2]: path for path in paths if path != BY_CLIENT[0]}
    parts = {name: part for name, part in line.items() if name not in (NAMED, DIGEST)}
    if times:
        parts["time"] = Beside(line.get("time", {}), times, path, digest)
    return Beside(parts, {"clients": BY_CLIENT[0]} if BY_CLIENT[0] in paths else {}, path, digest)


def write(path: Path, round_number: int, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One round's rows, by ascending partition.

    Returns:
        The file's SHA-256.
    """
    import pyarrow
    import pyarrow.parquet

    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    ordered = sorted(rows, key=int)
    table: dict[str, list[Any]] = {
        "round": [round_number] * len(ordered),
        "partition": [int(partition) for partition in ordered],
    }
    table |= {name: [rows[partition].get(name) for partition in ordered] for name in names}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(table), sink, write_page_checksum=True)
    content = sink.getvalue()
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read(path: Path, under: str, digest: str | None = None) -> dict[str, Any]:
    """Partition -> what `write` was given of a client under a path of a line; None where it has nothing there.

    Args:
        digest: the file's, as its line has it; None in lines of an earlier version.

    Raises:
        SettingError: it cannot be read.
    """
    with _open(path, digest) as file:
        names = [name for name in file.schema_arrow.names if _below(name, under)]
        column_names = ["partition", *names]
        table = file.read(columns=column_names)
        values = {name: table.column(name).to_pylist() for name in column_names}
    tree: Tree = {}
    for name in names:
        at = tree
        for part in name[len(under) + 1 :].split("/") if name != under else ():
            at = at.setdefault(part, {})
        at[HERE] = values[name]
    return {str(partition): _nest(tree, row) for row, partition in enumerate(values["partition"])}


def _columns(path: Path, digest: str | None) -> list[str]:
    with _open(path, digest) as file:
        names: list[str] = file.schema_arrow.names
        return names


@contextmanager
def _open(path: Path, digest: str | None) -> Iterator["ParquetFile"]:
    import pyarrow
    import pyarrow.parquet

    try:
        content = read_whole(path, LARGEST_RECORD)
        # the checksums of its pages are not of what tells of the pages
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("its bytes are not those that were written")
        yield pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True)
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise SettingError(f"{path} cannot be read ({problem}); bring it back, or start a new run.") from None


def _at(line: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    node: Any = line
    for name in path.split("/"):
        node = node.get(name, {})
    return dict(node)


def _below(name: str, path: str) -> bool:
    return name == path or name.startswith(path + "/")


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


def _nest(tree: Tree, row: int) -> Any:
    """The value of one row; None where there is nothing."""
    if (value := _cell(tree, row)) is not None:
        return value
    if LENGTH in tree and (length := _cell(tree[LENGTH], row)) is not None:
        return [_nest(tree[str(place)], row) if str(place) in tree else None for place in range(length)]
    if NONE in tree and _cell(tree[NONE], row):
        return {}
    values = {name: _nest(below, row) for name, below in tree.items() if name not in (HERE, LENGTH, NONE)}
    return {unquote(name): value for name, value in values.items() if value is not None} or None


def _cell(tree: Tree, row: int) -> Any:
    return tree[HERE][row] if HERE in tree else None
