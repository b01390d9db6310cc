"""What the columns of a table of numbers and categories are, and what a row of them becomes.

A number is one feature, and where the column may lack values a second one that says so; a category is one feature a
value, and one more for a missing value where there can be any. What is missing of a number stays NaN in the stored
rows: a client puts the mean of its own training rows there (client_data.py). Sites that see their own rows alone
agree on the features by a `columns.json` beside the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.files import replacing
from protosphere.data.forms.folders import SCHEMA
from protosphere.data.forms.labels import MISSING, MISSING_NUMBERS, is_number, is_string

if TYPE_CHECKING:
    import pyarrow

NUMBER, CATEGORY = "number", "category"
UNNAMED = ("", "Unnamed: 0", "__index_level_0__")
MOST_VALUES = 200  # of a category; more are ids or texts
NOTHING = "no value"
TRUTHS = ("false", "true")
NUMBERS_SHARE = 0.9  # of a column's values, from which on the rest are mistakes
_FEW = 10  # values that a category may have however few rows there are


@dataclass(frozen=True)
class Column:
    """A column of a table, and what its cells can be: `values` of a category; `missing`: there may be none.

    `kind` is "number" or "category".
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    missing: bool = False

    @property
    def features(self) -> int:
        """How many features it becomes."""
        return (1 if self.kind == NUMBER else len(self.values)) + self.missing

    def as_json(self) -> dict[str, Any]:
        """As columns.json has it."""
        values = {"values": list(self.values)} if self.kind == CATEGORY else {}
        return {"name": self.name, "kind": self.kind, **values, "missing": self.missing}

    def encode(self, cells: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """(n, features) float32, and which rows hold what the column cannot (n,) bool."""
        return self._encode_numbers(cells) if self.kind == NUMBER else self._encode_one_hot(cells)

    def _encode_numbers(self, cells: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        values, missing = _as_numbers(cells, truths=True)
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        wrong = missing & (not self.missing) | ~missing & ~np.isfinite(numbers)
        features = [numbers, missing.astype(np.float32)] if self.missing else [numbers]
        return np.stack(features, axis=1), wrong

    def _encode_one_hot(self, cells: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        import pyarrow
        import pyarrow.compute as pc

        if pyarrow.types.is_boolean(cells.type):
            cells = self._spell_truths(cells)
        cell_texts, missing = _as_words(cells, MISSING)
        codes = pc.index_in(cell_texts, value_set=pyarrow.array(self.values, pyarrow.string())).fill_null(-1).to_numpy()
        features = np.zeros((len(codes), self.features), np.float32)
        rows = np.flatnonzero(~missing & (codes >= 0))
        features[rows, codes[rows]] = 1
        if self.missing:
            features[missing, -1] = 1
        return features, np.where(missing, not self.missing, codes < 0)

    def _spell_truths(self, cells: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
        """True and false as the column's values have them: a CSV file of pandas has True, which is then a word."""
        import pyarrow

        spelled = {value.lower(): value for value in self.values}
        spelling_of = {truth: spelled.get(str(truth).lower(), str(truth)) for truth in (True, False)}
        return pyarrow.chunked_array([[spelling_of.get(cell) for cell in cells.to_pylist()]], pyarrow.string())


def columns_from_json(written: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The inverse of `Column.as_json`."""
    return tuple(
        Column(entry["name"], entry["kind"], tuple(entry.get("values", ())), entry.get("missing", False))
        for entry in written
    )


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table that become features, in their order."""

    columns: tuple[Column, ...]

    @property
    def numeric(self) -> np.ndarray:
        """Which features are the values of a number: (F,) bool."""
        flags = []
        for column in self.columns:
            flags += [column.kind == NUMBER] + [False] * (column.features - 1) if column.features else []
        return np.array(flags, dtype=bool)

    def count_missing(self, inputs: np.ndarray) -> dict[str, int]:
        """How many of the encoded rows lack a value of each column that may lack one."""
        counts, end = {}, 0
        for column in self.columns:
            end += column.features
            if column.missing:
                counts[column.name] = int(np.asarray(inputs[:, end - 1]).sum())
        return counts

    @classmethod
    def fit(cls, name: str, tables: Mapping[str, pyarrow.Table], column_names: Sequence[str]) -> TableSchema:
        """What the columns of all splits hold together: one may have whole numbers where another has fractions.

        Args:
            name: the data set's, for messages. tables: by split, "train" first.

        Raises:
            DataError: a column of another kind than numbers or strings, of strays among numbers, or of too many values.
        """
        for column in column_names:
            if column in UNNAMED:
                raise DataError(
                    f"{name!r} has the column {column!r} without a name of its own, the numbers of rows as pandas "
                    f"writes them: write the table with index=False, or name the columns to use in {SCHEMA}."
                )
        joined = join_tables(name, [table.select(column_names) for table in tables.values()])
        train_rows = tables["train"].num_rows
        return cls(tuple(_fit_column(name, column, joined.column(column), train_rows) for column in column_names))

    def encode(self, name: str, split: str, table: pyarrow.Table, alone: bool = False) -> np.ndarray:
        """Rows as features: (n, F) float32, NaN for a number that is missing.

        Args:
            name, split: for messages. table: has all columns.
            alone: a row that holds what its column cannot has infinity there, and is not refused.

        Raises:
            DataError: a cell holds what its column cannot.
        """
        parts = [np.zeros((table.num_rows, 0), np.float32)]
        for column in self.columns:
            cells = table.column(column.name)
            _refuse_odd_type(name, column.name, cells.type)
            features, wrong = column.encode(cells)
            if alone:
                features[wrong] = np.inf
            elif wrong.any():
                row = int(wrong.argmax())
                raise _describe_wrong_cell(name, split, column, row, cells[row].as_py())
            parts.append(features)
        return np.concatenate(parts, axis=1)

    @classmethod
    def load(cls, path: Path) -> TableSchema:
        """What a columns.json says.

        Raises:
            DataError: it is none.
        """
        try:
            columns = columns_from_json(json.loads(path.read_text("utf-8"))["columns"])
            is_schema = bool(columns) and _are_distinct([column.name for column in columns])
            for column in columns:
                is_schema &= column.kind in (NUMBER, CATEGORY) and isinstance(column.missing, bool)
                is_schema &= _are_distinct(column.values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_schema = False
        if not is_schema:
            raise DataError(
                f'{str(path)!r} does not name columns as {{"columns": [{{"name": ..., "kind": "number" or "category", '
                '"values": [...], "missing": true or false}, ...]}, each once: have `protosphere data '
                "--export-columns FILE` write it."
            )
        return cls(columns)

    def save(self, path: Path) -> None:
        """Write a columns.json.

        Raises:
            DataError: it cannot be written.
        """
        lines = ",\n  ".join(json.dumps(column.as_json(), ensure_ascii=False) for column in self.columns)
        try:
            with replacing(path) as temporary:
                temporary.write_text(f'{{"columns": [\n  {lines}\n]}}\n', "utf-8")
        except OSError as error:
            raise DataError(f"the columns cannot be written to {str(path)!r} ({error.strerror or error}).") from None


def _are_distinct(words: Sequence[Any]) -> bool:
    return all(isinstance(word, str) for word in words) and len(set(words)) == len(words)


def describe_cell(value: Any) -> str:
    """A cell for a sentence: its value, or NOTHING."""
    is_missing = value is None or value != value or (isinstance(value, str) and value.strip() in MISSING)
    return NOTHING if is_missing else f"{value!r}"


def _describe_wrong_cell(name: str, split: str, column: Column, row: int, value: Any) -> DataError:
    what = describe_cell(value)
    place = f"{name!r} has {what} in row {row} of its {split} table in the column {column.name!r}"
    if column.kind == NUMBER and what != NOTHING and is_number(str(value)):
        return DataError(f"{place}, which is not finite: correct that cell, or empty it where it has no value.")
    return DataError(
        f"{place}, which {SCHEMA}, or the rows that the columns were made of, do not have: correct the row, or let "
        f"{SCHEMA} say that the column, a {column.kind}, can be missing or have that value."
    )


# --- what kind a column is -------------------------------------------------------------------------------------------


def _fit_column(name: str, column: str, cells: pyarrow.ChunkedArray, train_rows: int) -> Column:
    _refuse_odd_type(name, column, cells.type)
    values, missing = _as_numbers(cells)
    if not is_string(cells.type) or not np.isinf(values).any():
        return Column(column, NUMBER, missing=bool(missing.any()))

    _refuse_stray(name, column, cells, values[~missing], train_rows)
    cell_texts, missing = _as_words(cells, MISSING)
    distinct = sorted(word for word in cell_texts.unique().to_pylist() if word is not None)
    texts = [word for word in distinct if not is_number(word)]
    if not texts:
        # a number all the same: its row refuses infinity
        return Column(column, NUMBER, missing=bool(missing.any()))
    if len(texts) > _FEW and all(is_number(word.rstrip(" %").replace(",", ".")) for word in texts):
        sign = "a percent sign" if "%" in texts[0] else "a decimal comma"
        raise DataError(
            f"{name!r} has numbers with {sign} in the column {column!r}, such as {texts[0]!r}: write them as plain "
            "numbers with a point."
        )
    if len(distinct) > MOST_VALUES or len(distinct) > max(_FEW, len(cell_texts) // 2):
        raise DataError(
            f"{name!r} has {len(distinct)} different values in the column {column!r} of {len(cell_texts)} rows, such "
            f"as {texts[0]!r}, too many for a category: if it holds texts, set text-column to it; if numbers, correct "
            f"or empty that cell; if ids, name the columns to use in {SCHEMA}."
        )
    return Column(column, CATEGORY, tuple(distinct), bool(missing.any()))


def _refuse_stray(name: str, column: str, cells: pyarrow.ChunkedArray, values: np.ndarray, train_rows: int) -> None:
    """Refuse what is no number in a column where nearly all values are numbers, and too many for those of a category.

    Args:
        values: of the cells that have one, infinity for what is no number.

    Raises:
        DataError: the first such cell.
    """
    numbers = values[np.isfinite(values)]
    if len(np.unique(numbers)) <= _FEW or len(numbers) < NUMBERS_SHARE * len(values):
        return
    for row, cell in enumerate(cells.to_pylist()):
        word = str(cell).strip()
        if cell is None or word in MISSING_NUMBERS or is_number(word):
            continue
        remedy = "correct that cell, or empty it where it has no value"
        if word.count(",") == 1 and is_number(word.replace(",", ".")):
            remedy = "write decimals with a point, and nothing between thousands"
        place = str(row) if row < train_rows else f"{row - train_rows} of its test table"
        raise DataError(
            f"{name!r} has {word!r} in row {place} in the column {column!r}, whose other values are numbers: {remedy}; "
            f"a category of all these values needs a {SCHEMA}."
        )


def _refuse_odd_type(name: str, column: str, kind: pyarrow.DataType) -> None:
    """Refuse a feature that is neither a string nor a number."""
    from pyarrow import types

    is_plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    if not is_plain and not is_string(kind) and not types.is_null(kind):
        raise DataError(
            f"{name!r} has {kind} in the column {column!r}, but features are numbers and strings: write it as one of "
            f"them, or name the columns to use in {SCHEMA}."
        )


# --- cells, of whatever type they are --------------------------------------------------------------------------------


def _as_numbers(cells: pyarrow.ChunkedArray, truths: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Values (n,) float64, NaN for what is missing and infinity for what is no number; and which are missing.

    With `truths` the words true and false are 1 and 0, as the column has them where it is no strings.
    """
    import pyarrow

    if not is_string(cells.type):
        values = cells.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
        return values, np.isnan(values)
    cell_texts, missing = _as_words(cells, MISSING_NUMBERS)
    try:
        values = cell_texts.cast(pyarrow.float64()).to_numpy().astype(np.float64)
    except pyarrow.ArrowInvalid:
        values = np.array([_parse_number(word, truths) for word in cell_texts.to_pylist()])
    # the word nan is no number, either
    return np.where(np.isnan(values) & ~missing, np.inf, values), missing


def _parse_number(word: str | None, truths: bool) -> float:
    if word is None:
        return np.nan
    if truths and word.lower() in TRUTHS:
        return float(TRUTHS.index(word.lower()))
    try:
        return float(word)
    except ValueError:
        return np.inf


def _as_words(cells: pyarrow.ChunkedArray, missing_words: Sequence[str]) -> tuple[Any, np.ndarray]:
    """Cells as strings without blanks around them, null for what is missing; and which are missing."""
    import pyarrow
    import pyarrow.compute as pc

    cell_texts = pc.utf8_trim_whitespace(cells.cast(pyarrow.string()))
    missing = pc.is_in(cell_texts, value_set=pyarrow.array([*missing_words, None], pyarrow.string()))
    return pc.if_else(missing, pyarrow.scalar(None, pyarrow.string()), cell_texts), np.asarray(missing.to_numpy())


def join_tables(name: str, parts: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Tables one below another, each column of the type that all its parts have in common.

    Raises:
        DataError: there is none.
    """
    import pyarrow

    typed_parts = []
    for part in parts:
        for place, field in enumerate(part.schema):
            # strings none of which is there are of no type: other files may have numbers in that column
            if is_string(field.type) and part.column(place).null_count == part.num_rows:
                part = part.set_column(place, field.name, pyarrow.nulls(part.num_rows))
        typed_parts.append(part)
    try:
        table = pyarrow.concat_tables(typed_parts, promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise DataError(f"{name!r} has files of different columns ({error}): write them alike.") from None
    for place, field in enumerate(table.schema):
        if pyarrow.types.is_null(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pyarrow.string()))
    return table
