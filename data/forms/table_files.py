"""Table files as Arrow: parquet, and CSV, which is read strictly.

pandas and Arrow guess: short rows silently lose columns, the string "00012" becomes 12, and "2020-01-01" a time. Here
every CSV column contains strings, and a malformed row is an error.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow

BATCH = 1000  # rows in memory at once, since images and texts are large
_LARGE_BATCH = 100_000  # for numbers and labels, which are read as a whole
_LONGEST_HEADER = 2**20  # bytes
_BLOCK_BYTES = 2**24  # the longest row


@dataclass(frozen=True, eq=False)
class TablePart:
    """A piece of a table: a file, a split of the hub, or a folder of images.

    Attributes:
        name: of the file, for messages. schema: its columns. batches: returns some columns, as tables of at most the
            given number of rows.
        opens_files: whether an image given by its path is read; the path may be any file of this machine.
        is_test: whether it has official test samples. domain: of all its samples; None without domains.
    """

    name: str
    schema: pyarrow.Schema
    batches: Callable[[Sequence[str], int], Iterator[pyarrow.Table]]
    opens_files: bool = False
    is_test: bool = False
    domain: int | None = None

    @cached_property
    def names(self) -> list[str]:
        """The columns, in order."""
        return list(self.schema.names)

    def read(self, names: Sequence[str]) -> pyarrow.Table:
        """Some columns of all rows."""
        import pyarrow

        empty = pyarrow.schema([self.schema.field(name) for name in names]).empty_table()
        return pyarrow.concat_tables([empty, *self.batches(names, _LARGE_BATCH)])

    def is_string(self, name: str) -> bool:
        """Whether a column holds strings."""
        return is_string(self.schema.field(name).type)

    @cached_property
    def notes(self) -> dict[str, dict[str, Any]]:
        """The metadata that `datasets` has stored about columns: class names, and which columns are images."""
        try:
            noted = json.loads((self.schema.metadata or {})[b"huggingface"])["info"]["features"]
            return {name: note for name, note in noted.items() if isinstance(note, dict)}
        except (KeyError, ValueError, TypeError, AttributeError):
            # other programs may have written other metadata
            return {}

    def class_names(self, column: str) -> tuple[str, ...]:
        """The class names stored for a column, () for none; its numbers are positions in them."""
        names = self.notes.get(column, {}).get("names")
        return tuple(map(str, names)) if isinstance(names, list) else ()


def is_string(kind: Any) -> bool:
    """Whether an Arrow type is that of strings."""
    return str(kind) in ("string", "large_string")


def open_table(path: Path, skips_ragged: bool = False) -> TablePart:
    """Open a CSV or parquet file; only the header is read now.

    Args:
        skips_ragged: whether a CSV row with more or fewer fields than the header is skipped.
    """
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".csv":
        names = _csv_header(path)
        schema = pyarrow.schema([(name, pyarrow.string()) for name in names])
    else:
        stored = pyarrow.parquet.read_schema(path)
        names = stored.names
        fields = [field.with_type(_plain_type(field.type)) for field in stored]
        schema = pyarrow.schema(fields, metadata=stored.metadata)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{str(path)!r} names the column {name!r} twice: name each column once.")

    def batches(names: Sequence[str], rows: int) -> Iterator[pyarrow.Table]:
        if path.suffix == ".csv":
            yield from _csv_batches(path, names, skips_ragged)
            return
        plain = pyarrow.schema([schema.field(name) for name in names])
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(rows, columns=list(names)):
                yield pyarrow.Table.from_batches([batch]).select(names).cast(plain)

    return TablePart(path.name, schema, batches)


def _plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of a category's values, for pandas' categories; plain strings for the strings of polars."""
    import pyarrow

    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return pyarrow.string() if str(kind) == "string_view" else kind


# --- CSV -------------------------------------------------------------------------------------------------------------


def _csv_header(path: Path) -> list[str]:
    """The names of the columns."""
    import pyarrow

    with path.open("rb") as file:
        header = file.readline(_LONGEST_HEADER)
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{str(path)!r} is UTF-16: save the file in UTF-8.")
    # lines may end with a carriage return only
    header = header.lstrip(b"\r").partition(b"\r")[0]
    for sign, word in ((b";", "semicolons"), (b"\t", "tabs"), (b"|", "bars")):
        if sign in header and b"," not in header:
            raise DataError(
                f"{str(path)!r} has {word} between its fields, but a CSV file has commas: write it anew, as "
                f"pandas.read_csv(path, sep={sign.decode()!r}).to_csv(path, index=False) does, with decimal=',' in the "
                "first where decimals have commas."
            )
    if header.rstrip().endswith(b","):
        raise DataError(
            f"{str(path)!r} has a comma at the end of its header, so that its last column has no name: remove the "
            "commas at the ends of its rows."
        )
    try:
        # rows are checked when they are read
        with _open_csv(path, (), skips_ragged=True) as reader:
            return list(reader.schema.names)
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise _describe_csv_error(path, error) from error


def _csv_batches(path: Path, names: Sequence[str], skips_ragged: bool) -> Iterator[pyarrow.Table]:
    import pyarrow

    try:
        with _open_csv(path, names, skips_ragged) as reader:
            for batch in reader:
                yield pyarrow.Table.from_batches([batch])
    except pyarrow.ArrowInvalid as error:
        raise _describe_csv_error(path, error) from error


def _open_csv(path: Path, names: Sequence[str], skips_ragged: bool) -> Any:
    import pyarrow
    from pyarrow import csv

    handler = (lambda row: "skip") if skips_ragged else None
    return csv.open_csv(
        path,
        # with threads, an error does not name the row
        read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=handler),
        convert_options=csv.ConvertOptions(
            strings_can_be_null=False, include_columns=names, column_types=dict.fromkeys(names, pyarrow.string())
        ),
    )


def _describe_csv_error(path: Path, error: Exception) -> DataError:
    """Arrow's message without the row's content, which must not be logged."""
    reason = str(error)
    row = re.search(r"Row #(\d+)", reason)
    place = f"row {int(row[1]) - 2} of {str(path)!r}" if row else repr(str(path))
    ragged = re.search(r"Expected (\d+) columns, got (\d+)", reason)
    if ragged:
        return DataError(
            f"{place} has another number of fields ({ragged[2]}) than the header ({ragged[1]}): correct the row, and "
            'put values with commas, quotes or line breaks into double quotes, a quote in them as "".'
        )
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
        return DataError(f"{place} is not UTF-8: save the file in UTF-8.")
    if "Empty CSV file" in reason:
        return DataError(f"{place} is empty: write a header and rows, or remove it.")
    return DataError(
        f"{place} cannot be read as CSV ({type(error).__name__}): write it anew; perhaps a quote lacks its end, or a "
        f"row has more than {_BLOCK_BYTES} bytes."
    )
