"""The files of tables: parquet, and CSV, which is read strictly.

pandas and Arrow guess: rows that are short lose columns silently, the string "00012" becomes 12, and "2020-01-01" a
time. Here every CSV column is strings, a value stays as it is, and a broken row is an error.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow

_BATCH = 1000  # rows that are read together
_LONGEST_HEADER = 2**20  # bytes
_BLOCK_BYTES = 2**24  # no row may be longer


def types_of(path: Path) -> dict[str, pyarrow.DataType]:
    """The columns of a file, in its order, and what each holds: of CSV strings.

    Raises:
        DataError: the file cannot be read, or names a column twice.
    """
    import pyarrow

    if path.suffix == ".csv":
        return {name: pyarrow.string() for name in _csv_header(path)}
    schema = parquet_schema(path)
    _refuse_twice(path, schema.names)
    return {name: _plain_type(schema.field(name).type) for name in schema.names}


def _plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Of categories as pandas writes them what they are of, and of strings as polars has them plain ones."""
    import pyarrow

    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return pyarrow.string() if str(kind) == "string_view" else kind


def parquet_schema(path: Path) -> pyarrow.Schema:
    """The columns of a parquet file, with what `datasets` has written about them."""
    import pyarrow.parquet

    return pyarrow.parquet.read_schema(path)


def read_columns(path: Path, names: Sequence[str], skips_ragged: bool = False) -> pyarrow.Table:
    """Some columns of a file; strings of every kind that parquet has are plain ones.

    Args:
        skips_ragged: whether a CSV row with more or fewer fields than the header is left out.

    Raises:
        DataError: the file cannot be read, has such a row, or is not UTF-8.
    """
    import pyarrow.parquet

    if path.suffix == ".csv":
        schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
        return pyarrow.Table.from_batches(_csv_batches(path, names, skips_ragged), schema)

    table = pyarrow.parquet.read_table(path, columns=list(names))
    for place, field in enumerate(table.schema):
        kind = _plain_type(field.type)
        if kind != field.type:
            table = table.set_column(place, field.name, table.column(place).cast(kind))
    return table


def read_cells(path: Path, name: str, skips_ragged: bool = False) -> Iterator[Any]:
    """Arrow's cells of one column, of which a batch at a time is in memory, since images and texts are large; arguments
    as in `read_columns`."""
    import pyarrow.parquet

    if path.suffix == ".csv":
        for batch in _csv_batches(path, [name], skips_ragged):
            yield from batch.column(0)
        return
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=[name]):
            yield from batch.column(0)


def count_rows(path: Path) -> int:
    """How many rows a file has.

    Raises:
        DataError: it cannot be read.
    """
    import pyarrow.parquet

    if path.suffix == ".csv":
        return sum(batch.num_rows for batch in _csv_batches(path, _csv_header(path)[:1]))
    return int(pyarrow.parquet.read_metadata(path).num_rows)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _csv_header(path: Path) -> list[str]:
    import pyarrow

    _refuse_dialect(path)
    try:
        # whoever reads the rows judges them
        with _open_csv(path, skips_ragged=True) as reader:
            names: list[str] = reader.schema.names
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise _describe_csv_error(path, error) from error
    _refuse_twice(path, names)
    return names


def _refuse_twice(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{str(path)!r} names the column {name!r} twice: name each column once.")


def _refuse_dialect(path: Path) -> None:
    """Refuse a file that is not UTF-8 with commas between fields, by its header.

    Raises:
        DataError: what stands there, and the remedy.
    """
    with path.open("rb") as file:
        header = file.readline(_LONGEST_HEADER)
    if not header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # of a file whose lines end so all would be the header
        header = header.lstrip(b"\r").partition(b"\r")[0]
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


def _csv_batches(path: Path, names: Sequence[str], skips_ragged: bool = False) -> Iterator[pyarrow.RecordBatch]:
    """Some columns, in the order of the names, piece by piece."""
    import pyarrow

    try:
        with _open_csv(path, names, skips_ragged) as reader:
            yield from reader
    except pyarrow.ArrowInvalid as error:
        raise _describe_csv_error(path, error) from error


def _open_csv(path: Path, names: Sequence[str] = (), skips_ragged: bool = False) -> Any:
    import pyarrow
    from pyarrow import csv

    handler = (lambda row: "skip") if skips_ragged else None
    return csv.open_csv(
        path,
        # with threads an error does not name the row
        read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=handler),
        convert_options=csv.ConvertOptions(
            strings_can_be_null=False, include_columns=names, column_types=dict.fromkeys(names, pyarrow.string())
        ),
    )


def _describe_csv_error(path: Path, error: Exception) -> DataError:
    """What Arrow says, without the content of the row: notes do not belong in a log."""
    reason = str(error)
    row = re.search(r"Row #(\d+)", reason)
    place = f"row {int(row[1]) - 2} of {str(path)!r}" if row else repr(str(path))
    ragged = re.search(r"Expected (\d+) columns, got (\d+)", reason)
    if ragged:
        return DataError(
            f"{place} has another number of fields ({ragged[2]}) than the header ({ragged[1]}): mend the row; a field "
            'with commas, quotes or line breaks stands in double quotes, a quote in it as "".'
        )
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
        return DataError(f"{place} is not UTF-8: save the file in UTF-8.")
    if "Empty CSV file" in reason:
        return DataError(f"{place} is empty: write a header and rows, or remove it.")
    if "straddling" in reason:
        return DataError(f"{place} has a row of more than {_BLOCK_BYTES} bytes: look for a quote without its end.")
    return DataError(f"{place} cannot be read as CSV ({type(error).__name__}): write it anew.")
