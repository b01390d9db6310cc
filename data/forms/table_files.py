"""The files of tables: parquet, CSV and JSON lines. CSV and JSON are read strictly: a value stays as it is, a
broken row is an error.

pandas and Arrow guess: rows that are short lose columns silently, the string "00012" becomes 12, and "2020-01-01" a
time. Here every CSV column is strings, and a JSON column holds one kind of values.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow

_BATCH = 1000  # rows that are read together
_LONGEST_HEADER = 2**20  # bytes
_BLOCK_BYTES = 2**24  # no row may be longer
_INT64 = 2**63
# what a JSON value is, in the words of a refusal
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number"}


def types_of(path: Path) -> dict[str, pyarrow.DataType]:
    """The columns of a file, in its order, and what each holds: of CSV strings, of JSON what its first value is.

    Raises:
        DataError: the file cannot be read, or names a column twice.
    """
    import pyarrow.parquet

    if path.suffix == ".parquet":
        schema = parquet_schema(path)
        return {name: schema.field(name).type for name in schema.names}
    if path.suffix == ".csv":
        return {name: pyarrow.string() for name in _csv_header(path)}

    firsts: dict[str, Any] = {}
    for _, row in json_rows(path):
        for name, value in row.items():
            if firsts.get(name) is None:
                firsts[name] = value
    return {name: pyarrow.int64() if type(value) is int else pyarrow.string() for name, value in firsts.items()}


def read_columns(path: Path, names: Sequence[str]) -> pyarrow.Table:
    """Some columns of a file. A key that a JSON row lacks is a missing value.

    Raises:
        DataError: the file cannot be read, a CSV row has more or fewer fields than the header, text is not UTF-8, a
            JSON value is neither text nor number, or of another kind than those above it.
    """
    import pyarrow

    if path.suffix != ".parquet":
        return _join_batches(list(_batches(path, names)), names)

    table = pyarrow.parquet.read_table(path, columns=list(names))
    for place, field in enumerate(table.schema):
        # categories as pandas writes them, and strings as polars does
        kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
        kind = pyarrow.string() if str(kind) == "string_view" else kind
        if kind != field.type:
            table = table.set_column(place, field.name, table.column(place).cast(kind))
    return table


def read_cells(path: Path, name: str) -> Iterator[Any]:
    """Arrow's cells of one column, of which a batch at a time is in memory, since images and texts are large."""
    import pyarrow.parquet

    if path.suffix != ".parquet":
        for table in _batches(path, [name]):
            yield from table.column(name)
        return
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=[name]):
            yield from batch.column(0)


def _batches(path: Path, names: Sequence[str]) -> Iterator[pyarrow.Table]:
    """Some columns of a CSV or JSON file, piece by piece."""
    return _csv_batches(path, names) if path.suffix == ".csv" else _json_batches(path, names)


def _join_batches(batches: Sequence[pyarrow.Table], names: Sequence[str]) -> pyarrow.Table:
    """One table of the pieces; what holds nothing in any of them is strings."""
    import pyarrow

    if not batches:
        return pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in names})
    table = pyarrow.concat_tables(batches, promote_options="permissive")
    for place, name in enumerate(names):
        if pyarrow.types.is_null(table.column(place).type):
            table = table.set_column(place, name, table.column(place).cast(pyarrow.string()))
    return table


def count_rows(path: Path) -> int:
    """How many rows a file has.

    Raises:
        DataError: it cannot be read.
    """
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    if path.suffix == ".csv":
        return sum(table.num_rows for table in _batches(path, _csv_header(path)[:1]))
    return sum(1 for _ in json_rows(path))


def parquet_schema(path: Path) -> pyarrow.Schema:
    """The columns of a parquet file, with what `datasets` has written about them."""
    import pyarrow.parquet

    return pyarrow.parquet.read_schema(path)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _csv_header(path: Path) -> list[str]:
    import pyarrow

    _refuse_dialect(path)
    try:
        with _open_csv(path) as reader:
            names: list[str] = reader.schema.names
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise _describe_csv_error(path, error) from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{str(path)!r} names the column {twice!r} twice: name each column once.")
    return names


def _refuse_dialect(path: Path) -> None:
    """Refuse a file that is not UTF-8 with commas between fields, by its header.

    Raises:
        DataError: what stands there, and the remedy.
    """
    with path.open("rb") as file:
        header = file.readline(_LONGEST_HEADER)
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{str(path)!r} is UTF-16: save the file in UTF-8.")
    for sign, word in ((b";", "semicolons"), (b"\t", "tabs"), (b"|", "bars")):
        if sign in header and b"," not in header:
            raise DataError(
                f"{str(path)!r} has {word} between its fields, but a CSV file has commas: write it anew, as "
                f"pandas.read_csv(path, sep={sign.decode()!r}).to_csv(path, index=False) does, with decimal=',' in the "
                "first where decimals have commas."
            )
    if header.rstrip().endswith(b","):
        raise DataError(
            f"{str(path)!r} has a comma at the end of its header, so that its last column has no name: take away the "
            "commas at the ends of its rows."
        )


def _csv_batches(path: Path, names: Sequence[str]) -> Iterator[pyarrow.Table]:
    import pyarrow

    schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
    try:
        with _open_csv(path, schema) as reader:
            for batch in reader:
                yield pyarrow.Table.from_batches([batch.select(schema.names)], schema)
    except pyarrow.ArrowInvalid as error:
        raise _describe_csv_error(path, error) from error


def _open_csv(path: Path, schema: pyarrow.Schema | None = None) -> Any:
    from pyarrow import csv

    convert = csv.ConvertOptions(strings_can_be_null=False)
    if schema is not None:
        convert.column_types, convert.include_columns = schema, schema.names
    return csv.open_csv(
        path,
        # with threads an error does not name the row
        read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=convert,
    )


def _describe_csv_error(path: Path, error: Exception) -> DataError:
    """What Arrow says, without the content of the row: notes do not belong in a log."""
    reason = str(error)
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", reason)
    if ragged:
        row, expected, got = map(int, ragged.groups())
        return DataError(
            f"row {row - 2} of {str(path)!r} has another number of fields ({got}) than the header ({expected}): "
            'mend the row; a field with commas, quotes or line breaks stands in double quotes, a quote in it as "".'
        )
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
        match = re.search(r"Row #(\d+)", reason)
        row_name = f"row {int(match[1]) - 2} of " if match else ""
        return DataError(f"{row_name}{str(path)!r} is not UTF-8: save the file in UTF-8.")
    if "Empty CSV file" in reason:
        return DataError(f"{str(path)!r} is empty: write a header and rows, or remove it.")
    if "straddling" in reason:
        return DataError(
            f"{str(path)!r} has a row of more than {_BLOCK_BYTES} bytes: look for a quote without its end."
        )
    return DataError(f"{str(path)!r} cannot be read as CSV ({type(error).__name__}): write it anew.")


# --- JSON lines ------------------------------------------------------------------------------------------------------


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of every row, a line each.

    Raises:
        DataError: a line that is no JSON object in UTF-8.
    """
    row = 0
    with path.open("rb") as stream:
        for line in stream:
            if not line.strip():
                continue
            try:
                content = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError:
                raise DataError(f"row {row} of {str(path)!r} is not UTF-8: save the file in UTF-8.") from None
            except (ValueError, RecursionError):
                content = None
            if row == 0 and line.decode("utf-8-sig").lstrip().startswith("["):
                raise DataError(
                    f"{str(path)!r} holds a JSON array: write one object per line, as pandas does with "
                    'to_json(orient="records", lines=True).'
                )
            if not isinstance(content, dict):
                raise DataError(
                    f'row {row} of {str(path)!r} is no JSON object: write one per line, as {{"text": …, "label": …}}.'
                )
            yield row, content
            row += 1


def _json_batches(path: Path, names: Sequence[str]) -> Iterator[pyarrow.Table]:
    import pyarrow

    kinds: dict[str, str] = {}
    rows = json_rows(path)
    while batch := list(islice(rows, _BATCH)):
        arrays = {}
        for name in names:
            for row, content in batch:
                _check_value(path, row, name, content.get(name), kinds)
            arrays[name] = _to_arrow([content.get(name) for _, content in batch], kinds.get(name, ""))
        yield pyarrow.table(arrays)


def _check_value(path: Path, row: int, name: str, value: Any, kinds: dict[str, str]) -> None:
    """Refuse a value that is no text, number or truth, or of another kind than those above it in its column.

    Raises:
        DataError: it names the row and the column, and quotes nothing.
    """
    if value is None:
        return
    kind = _KINDS.get(type(value), "")
    expected = kinds.setdefault(name, kind)
    if not kind or kind != expected:
        comparison = f", where other rows have {expected}" if expected and kind else ""
        raise DataError(
            f"row {row} of {str(path)!r} has {kind or 'a list or an object'} in column {name!r}{comparison}: write it "
            "alike in all rows, as numbers or as strings."
        )
    # half of a pair of escapes is a Python string, but no UTF-8
    if isinstance(value, str) and not value.isascii() and value.encode("utf-8", "ignore").decode() != value:
        raise DataError(f"row {row} of {str(path)!r} has half of a \\u pair in column {name!r}: correct the row.")


def _to_arrow(values: list[Any], kind: str) -> pyarrow.Array:
    """Values of one kind, None where a row has none."""
    import pyarrow

    if not kind:
        return pyarrow.nulls(len(values))
    if kind != _KINDS[float]:
        return pyarrow.array(values, pyarrow.bool_() if kind == _KINDS[bool] else pyarrow.string())
    if all(value is None or (type(value) is int and -_INT64 <= value < _INT64) for value in values):
        return pyarrow.array(values, pyarrow.int64())
    return pyarrow.array([None if value is None else _to_float(value) for value in values], pyarrow.float64())


def _to_float(value: float) -> float:
    """A number of JSON; infinity where it is larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
