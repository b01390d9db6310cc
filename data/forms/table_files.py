"""The files of tables: parquet, CSV and JSON. CSV and JSON are read strictly: a value stays as it is, a broken row is
an error.

`datasets` reads both through pandas' and Arrow's guesses: rows that are short lose columns silently, rows that are long
shift them, the JSON string "00012" becomes 12 beside a number, and "2020-01-01" a time. Here nothing is guessed, and a
file is read in pieces.
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

_BATCH = 1000
_LONGEST_HEADER = 2**20  # bytes that are looked through
# no row may be longer
_BLOCK_BYTES = 2**24
_WORDS = {str: "text", int: "a whole number"}
# what a JSON value is, as one column may mix it
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number"}
_INT64 = 2**63


def types_of(path: Path) -> dict[str, pyarrow.DataType]:
    """The columns of a file, in its order, and what each holds: of CSV strings; of JSON int64 or string, by its first
    value, numbers with a point told as strings.

    Raises:
        DataError: the file cannot be read, or names a column twice.
    """
    import pyarrow.parquet

    if path.suffix == ".parquet":
        schema = pyarrow.parquet.read_schema(path)
        return {name: schema.field(name).type for name in schema.names}
    if path.suffix == ".csv":
        _refuse_dialect(path)
        try:
            with _csv(path) as reader:
                names = reader.schema.names
        except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
            raise _broken_csv(path, error) from error
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{str(path)!r} names the column {twice!r} twice: name each column once.")
        return {name: pyarrow.string() for name in names}
    firsts: dict[str, Any] = {}
    for _, row in json_rows(path):
        for name, value in row.items():
            if firsts.get(name) is None:
                firsts[name] = value
    return {name: pyarrow.int64() if type(value) is int else pyarrow.string() for name, value in firsts.items()}


def _refuse_dialect(path: Path) -> None:
    """Refuse a table of another dialect than UTF-8 with commas between fields, by its header.

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
                "first where decimals have commas.",
            )
    if header.rstrip().endswith(b","):
        raise DataError(
            f"{str(path)!r} has a comma at the end of its header, so that its last column has no name: take away the "
            "commas at the ends of its rows.",
        )


def batches(path: Path, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """The columns of `schema` of a CSV or JSON file, piece by piece. A key that a JSON row lacks is a missing value.

    Raises:
        DataError: the file cannot be read, a CSV row has more or fewer fields than the header, text is not UTF-8,
            a JSON value has another type than its column.
    """
    import pyarrow

    if path.suffix != ".csv":
        rows = json_rows(path)
        while some := list(islice(rows, _BATCH)):
            arrays = [pyarrow.array([_value(path, *row, field) for row in some], field.type) for field in schema]
            yield pyarrow.record_batch(arrays, schema=schema)
        return
    try:
        with _csv(path, schema) as reader:
            for batch in reader:
                yield batch.select(schema.names)
    except pyarrow.ArrowInvalid as error:
        raise _broken_csv(path, error) from error


def _csv(path: Path, schema: pyarrow.Schema | None = None) -> Any:
    from pyarrow import csv

    convert = csv.ConvertOptions(strings_can_be_null=False)
    if schema is not None:
        convert.column_types, convert.include_columns = schema, schema.names
    return csv.open_csv(
        path,
        # with threads an error does not tell the row
        read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=convert,
    )


def _broken_csv(path: Path, error: Exception) -> DataError:
    """What Arrow says, without the content of the row: notes do not belong in a log."""
    reason = str(error)
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", reason)
    if ragged:
        row, expected, got = map(int, ragged.groups())
        return DataError(
            f"row {row - 2} of {str(path)!r} has another number of fields ({got}) than the header ({expected}): "
            'mend the row; a field with commas, quotes or line breaks stands in double quotes, a quote in it as "".',
        )
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
        match = re.search(r"Row #(\d+)", reason)
        return _not_utf8(path, int(match[1]) - 2 if match else None)
    if "Empty CSV file" in reason:
        return DataError(f"{str(path)!r} is empty: write a header and rows, or remove it.")
    if "straddling" in reason:
        return DataError(
            f"{str(path)!r} has a row of more than {_BLOCK_BYTES} bytes: look for a quote without its end.",
        )
    return DataError(f"{str(path)!r} cannot be read as CSV ({type(error).__name__}): write it anew.")


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of every row, a line each."""
    row = 0
    with path.open("rb") as stream:
        for line in stream:
            if not line.strip():
                continue
            if row == 0 and line.decode("utf-8-sig", "replace").lstrip().startswith("["):
                raise DataError(
                    f"{str(path)!r} holds a JSON array: write one object per line, as pandas does with "
                    'to_json(orient="records", lines=True).'
                )
            yield row, _as_row(path, row, _parse(path, row, line))
            row += 1


def _parse(path: Path, row: int, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _not_utf8(path, row) from None
    except (ValueError, RecursionError):
        raise DataError(f"row {row} of {str(path)!r} is not JSON: write one object per line.") from None


def _not_utf8(path: Path, row: int | None) -> DataError:
    """Of a row, or of what stands before the first."""
    sentence = f"{str(path)!r} is not UTF-8: save the file in UTF-8."
    if row is None:
        return DataError(sentence)
    return DataError(f"row {row} of {sentence}")


def _as_row(path: Path, row: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f'row {row} of {str(path)!r} is no object: write rows as {{"text": …, "label": …}}.',
        )
    return value


def _value(path: Path, row: int, content: dict[str, Any], field: pyarrow.Field) -> str | int | None:
    value = content.get(field.name)
    kind = int if str(field.type) == "int64" else str
    if value is None:
        return None
    column = f"in column {field.name!r}"
    wrong = ""
    if type(value) not in _WORDS:
        wrong = f"a {type(value).__name__} {column}: write strings or whole numbers"
    elif type(value) is not kind:
        wrong = f"{_WORDS[type(value)]} {column}, where other rows have {_WORDS[kind]}: write it alike in all rows"
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        wrong = f"{value} {column}: write it as a string"
    if wrong:
        raise DataError(f"row {row} of {str(path)!r} has {wrong}.")
    # half of a pair of escapes is a Python string, but no UTF-8
    if isinstance(value, str) and not value.isascii() and value.encode("utf-8", "ignore").decode() != value:
        raise DataError(
            f"row {row} of {str(path)!r} has half of a \\u pair in column {field.name!r}: correct the row.",
        )
    return value


def rows_in(path: Path) -> int:
    """How many rows a file has.

    Raises:
        DataError: it cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    if path.suffix != ".csv":
        return sum(1 for _ in json_rows(path))
    name = next(iter(types_of(path)))
    return sum(batch.num_rows for batch in batches(path, pyarrow.schema([(name, pyarrow.string())])))


def read_columns(path: Path, names: Sequence[str]) -> pyarrow.Table:
    """Some columns of a file that has them.

    Raises:
        DataError: the file cannot be read, or a JSON value is neither text nor number, or of another kind than those
            above it.
    """
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path, columns=list(names))
        for place, field in enumerate(table.schema):
            # categories of pandas', and strings as polars and newer Arrow have them
            kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
            kind = pyarrow.string() if str(kind) == "string_view" else kind
            if kind != field.type:
                table = table.set_column(place, field.name, table.column(place).cast(kind))
        return table
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
            )
        first = first or kind
    if first != _KINDS[float]:
        return pyarrow.array(values, pyarrow.bool_() if first == _KINDS[bool] else pyarrow.string())
    are_integers = all(value is None or (type(value) is int and -_INT64 <= value < _INT64) for value in values)
    return pyarrow.array(values if are_integers else [None if value is None else _fraction(value) for value in values])


def _fraction(value: float) -> float:
    """A number of JSON, infinity where it is larger than any."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
