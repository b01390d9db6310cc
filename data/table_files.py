"""The files of a table of numbers and categories: CSV, whose cells are all strings, JSON lines and parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import DataError, public
from protosphere.data.text_files import batches, column_types, json_rows

if TYPE_CHECKING:
    import pyarrow

# what a JSON value is, as one column may mix it
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number"}
_INT64 = 2**63


def types_of(path: Path) -> dict[str, Any]:
    """The columns of a file, in its order, and what each holds; of JSON numbers with a point are told as strings.

    Raises:
        DataError: the file cannot be read.
    """
    import pyarrow.parquet

    if path.suffix != ".parquet":
        return dict(column_types(path))
    schema = pyarrow.parquet.read_schema(path)
    return {name: schema.field(name).type for name in schema.names}


def read_columns(path: Path, names: Sequence[str]) -> pyarrow.Table:
    """Some columns of a file that has them.

    Raises:
        DataError: the file cannot be read, or a JSON value is neither text nor number, or of another kind than those
            above it.
    """
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path, columns=list(names))
    if path.suffix == ".csv":
        schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
        return pyarrow.Table.from_batches(batches(path, schema), schema)
    values: dict[str, list[Any]] = {name: [] for name in names}
    for _, row in json_rows(path):
        for name, column in values.items():
            column.append(row.get(name))
    return pyarrow.table({name: _json_column(path, name, column) for name, column in values.items()})


def _json_column(path: Path, name: str, values: list[Any]) -> pyarrow.Array:
    """Values of one kind, None where a row has none: strings, whole numbers, numbers, or truths."""
    import pyarrow

    first = ""
    for row, value in enumerate(values):
        kind = "" if value is None else _KINDS.get(type(value), "a list or an object")
        if kind and (kind not in _KINDS.values() or kind != (first or kind)):
            comparison = f", where other rows have {first}" if first and kind in _KINDS.values() else ""
            raise DataError(
                f"row {row} of {str(path)!r} has {kind} in column {name!r}{comparison}: write it alike in all rows, "
                "as numbers or as strings.",
                public("other-kind", row=row),
            )
        first = first or kind
    if first != _KINDS[float]:
        return pyarrow.array(values, pyarrow.bool_() if first == _KINDS[bool] else pyarrow.string())
    are_integers = all(value is None or (type(value) is int and -_INT64 <= value < _INT64) for value in values)
    return pyarrow.array(values if are_integers else [None if value is None else float(value) for value in values])
