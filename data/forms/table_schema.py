"""The columns of a table of numbers and categories, and the features that a row becomes.

A number is one feature. A category is one feature per value. Both have one more feature for missing values, if the
column may lack values. A missing number stays NaN in the stored rows: each client replaces it by the mean of its own
training samples. Sites agree on the features through a `columns.json` next to their tables.
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
from protosphere.data.forms.table_files import is_string
from protosphere.data.forms.words import MISSING, MISSING_NUMBERS, is_missing, is_number, place_of

if TYPE_CHECKING:
    import pyarrow

NUMBER, CATEGORY = "number", "category"
UNNAMED = ("", "Unnamed: 0", "__index_level_0__")
MOST_VALUES = 200  # values of a category; a column with more holds ids or texts
NOTHING = "no value"
NUMBERS_SHARE = 0.9  # share of numbers among a column's values above which the others are errors
_FEW = 10  # values that a category may have in a table of any size
_TRUTHS = {"false": 0.0, "true": 1.0}


@dataclass(frozen=True)
class Column:
    """A column: its `kind`, "number" or "category", the `values` of a category, and whether values may be missing."""

    name: str
    kind: str
    values: tuple[str, ...] = ()
    missing: bool = False

    @property
    def features(self) -> int:
        """The number of features of the column."""
        return (1 if self.kind == NUMBER else len(self.values)) + self.missing

    def as_json(self) -> dict[str, Any]:
        """The column as in columns.json."""
        values = {"values": list(self.values)} if self.kind == CATEGORY else {}
        return {"name": self.name, "kind": self.kind, **values, "missing": self.missing}

    def encode(self, cells: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """Features (n, features) float32, and which cells are invalid, (n,) bool."""
        features = np.zeros((len(cells), self.features), np.float32)
        if self.kind == NUMBER:
            # the table of another site may have stored booleans
            values, missing = _as_numbers(cells, _TRUTHS)
            with np.errstate(over="ignore"):
                features[:, 0] = values
            wrong = ~missing & ~np.isfinite(features[:, 0])
        else:
            codes, missing = self._find_values(cells)
            rows = np.flatnonzero(codes >= 0)
            features[rows, codes[rows]] = 1
            wrong = ~missing & (codes < 0)
        if self.missing:
            features[missing, -1] = 1
        return features, wrong | (missing & (not self.missing))

    def _find_values(self, cells: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """The index of each cell's value, -1 for an unknown value; and which cells are missing."""
        import pyarrow
        import pyarrow.compute as pc

        if pyarrow.types.is_boolean(cells.type):
            # as pandas writes them to a CSV file, or as the list has them
            is_lower = not {"true", "false"}.isdisjoint(self.values)
            cells = pc.if_else(cells, *(("true", "false") if is_lower else ("True", "False")))
        words, missing = _as_words(cells, MISSING)
        values = pyarrow.array(self.values, pyarrow.string())
        codes: np.ndarray = pc.index_in(words, value_set=values).fill_null(-1).to_numpy()
        return codes, missing


def columns_from_json(written: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The inverse of `Column.as_json`."""
    return tuple(
        Column(entry["name"], entry["kind"], tuple(entry.get("values", ())), entry.get("missing", False))
        for entry in written
    )


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table that become features, in order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> list[dict[str, Any]]:
        """The meaning of each feature: its `column`, with a `value` of a category, or `missing`; else the number."""
        features: list[dict[str, Any]] = []
        for column in self.columns:
            meanings: list[dict[str, Any]] = [{"value": value} for value in column.values]
            if column.kind == NUMBER:
                meanings = [{}]
            if column.missing:
                meanings.append({"missing": True})
            features += [{"column": column.name, **meaning} for meaning in meanings]
        return features

    @property
    def numeric(self) -> np.ndarray:
        """Which features are numbers, not indicators or values of a category: (F,) bool."""
        return np.array([set(feature) == {"column"} for feature in self.features], dtype=bool)

    def count_missing(self, inputs: np.ndarray) -> dict[str, int]:
        """The number of encoded rows without a value, for each column that may lack values."""
        counts = {}
        for place, feature in enumerate(self.features):
            if "missing" in feature:
                counts[feature["column"]] = int(np.asarray(inputs[:, place]).sum())
        return counts

    def describe(self) -> dict[str, Any]:
        """For programs that read tables without this project: the `features`, and the `missing_words`."""
        values = {value for column in self.columns for value in column.values}
        missing_words = [word for word in MISSING_NUMBERS if word in MISSING or word not in values]
        return {"features": self.features, "missing_words": missing_words}

    @classmethod
    def fit(cls, name: str, table: pyarrow.Table, train_rows: int) -> TableSchema:
        """Derive the schema from all rows of a table.

        Args:
            name: the data set's, for messages.
            train_rows: the number of training samples, which come first.
        """
        for column in table.column_names:
            if column in UNNAMED:
                raise DataError(
                    f"{name!r} has the column {column!r}, the numbers of rows as pandas writes them: write the table "
                    f"with index=False, or list the columns to use in {SCHEMA}."
                )
        return cls(tuple(_fit_column(name, column, table.column(column), train_rows) for column in table.column_names))

    def encode(
        self, name: str, table: pyarrow.Table, train_rows: int, first: int = 0, independent: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The features of rows, (n, F) float32 with NaN for a missing number; and which rows are usable, (n,) bool.

        Args:
            name, train_rows: as in `fit`.
            table: some rows of all columns.
            first: the number of the first row.
            independent: an invalid cell makes its row unusable instead of raising an error.
        """
        parts = [np.zeros((table.num_rows, 0), np.float32)]
        usable = np.ones(table.num_rows, dtype=bool)
        for column in self.columns:
            cells = table.column(column.name)
            features, wrong = column.encode(cells)
            if wrong.any() and not independent:
                row = int(wrong.argmax())
                value = cells[row].as_py()
                place = f"{place_of(name, first + row, train_rows)}, in the column {column.name!r}"
                raise _describe_wrong_cell(place, column.kind, value)
            usable &= ~wrong
            parts.append(features)
        return np.concatenate(parts, axis=1), usable

    @classmethod
    def load(cls, path: Path) -> TableSchema:
        """Read a columns.json."""
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
        """Write a columns.json."""
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
    return NOTHING if is_missing(value) else f"{value!r}"


def _describe_wrong_cell(place: str, kind: str, value: Any) -> DataError:
    what, is_empty = describe_cell(value), is_missing(value)
    if kind == NUMBER and not is_empty and is_number(str(value)):
        return DataError(
            f"there is {what} in {place}, which is not finite: correct that cell, or empty it where it has no value."
        )
    remedy = ""
    if is_empty:
        remedy = f', or set "missing": true for the column in {SCHEMA}'
    elif kind != NUMBER:
        remedy = f', or add the value to "values" in {SCHEMA}'
    return DataError(f"there is {what} in {place}, which {SCHEMA} does not allow: correct the row{remedy}.")


# --- the kind of a column --------------------------------------------------------------------------------------------


def _fit_column(name: str, column: str, cells: pyarrow.ChunkedArray, train_rows: int) -> Column:
    values, missing = _as_numbers(cells)
    if not is_string(cells.type) or not np.isinf(values).any():
        return Column(column, NUMBER, missing=bool(missing.any()))

    _refuse_stray(name, column, cells, values[~missing], train_rows)
    words, missing = _as_words(cells, MISSING)
    distinct = sorted(word for word in words.unique().to_pylist() if word is not None)
    texts = [word for word in distinct if not is_number(word)]
    if not texts:
        # the column has an infinite number; its row is refused later
        return Column(column, NUMBER, missing=bool(missing.any()))
    if len(texts) > _FEW and all(is_number(word.rstrip(" %").replace(",", ".")) for word in texts):
        sign = "a percent sign" if "%" in texts[0] else "a decimal comma"
        raise DataError(
            f"{name!r} has numbers with {sign} in the column {column!r}, such as {texts[0]!r}: write them as plain "
            "numbers with a point."
        )
    if len(distinct) > MOST_VALUES or len(distinct) > max(_FEW, len(words) // 2):
        raise DataError(
            f"{name!r} has {len(distinct)} different values in the column {column!r} of {len(words)} rows, such as "
            f"{texts[0]!r}, too many for a category: if it holds texts, set text-column to it; if numbers, correct or "
            f"empty that cell; if ids, name the columns to use in {SCHEMA}."
        )
    return Column(column, CATEGORY, tuple(distinct), bool(missing.any()))


def _refuse_stray(name: str, column: str, cells: pyarrow.ChunkedArray, values: np.ndarray, train_rows: int) -> None:
    """Refuse a word in a column whose `values` are nearly all numbers, with more distinct ones than a category has."""
    numbers = values[np.isfinite(values)]
    if len(np.unique(numbers)) <= _FEW or len(numbers) < NUMBERS_SHARE * len(values):
        return
    for row, cell in enumerate(cells.to_pylist()):
        if is_missing(cell, MISSING_NUMBERS) or is_number(cell):
            continue
        word = cell.strip()
        remedy = "correct that cell, or empty it where it has no value"
        if is_number(word.replace(",", ".", 1)):
            remedy = "write decimals with a point, and nothing between thousands"
        raise DataError(
            f"there is {word!r} in {place_of(name, row, train_rows)}, in the column {column!r}, whose other values are "
            f"numbers: {remedy}; a category of all these values needs a {SCHEMA}."
        )


def refuse_odd_types(name: str, tables: Sequence[pyarrow.Table]) -> None:
    """Refuse features that are neither strings nor numbers."""
    from pyarrow import types

    for table in tables:
        for column, kind in zip(table.schema.names, table.schema.types, strict=True):
            is_number_type = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
            if not (is_number_type or types.is_boolean(kind) or is_string(kind) or types.is_null(kind)):
                raise DataError(
                    f"{name!r} has {kind} in the column {column!r}, but features are numbers and strings: write it as "
                    f"one of them, or name the columns to use in {SCHEMA}."
                )


# --- cells, whatever their type --------------------------------------------------------------------------------------


def _as_numbers(cells: pyarrow.ChunkedArray, words: Mapping[str, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Values (n,) float64, NaN for a missing value and infinity for a non-number; and which are missing. `words` may
    represent numbers."""
    import pyarrow

    if not is_string(cells.type):
        values = cells.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
        return values, np.isnan(values)
    texts, missing = _as_words(cells, MISSING_NUMBERS)
    try:
        values = texts.cast(pyarrow.float64()).to_numpy().astype(np.float64)
    except pyarrow.ArrowInvalid:
        values = np.array([_parse_number(word, words or {}) for word in texts.to_pylist()])
    # the word nan is not a number either
    return np.where(np.isnan(values) & ~missing, np.inf, values), missing


def _parse_number(word: str | None, words: Mapping[str, float]) -> float:
    if word is None:
        return np.nan
    try:
        return float(word)
    except ValueError:
        return words.get(word.lower(), np.inf)


def _as_words(cells: pyarrow.ChunkedArray, missing_words: Sequence[str]) -> tuple[Any, np.ndarray]:
    """Cells as strings without surrounding blanks, null for missing ones; and which are missing."""
    import pyarrow
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(cells.cast(pyarrow.string()))
    missing = pc.is_in(texts, value_set=pyarrow.array([*missing_words, None], pyarrow.string()))
    return pc.if_else(missing, pyarrow.scalar(None, pyarrow.string()), texts), np.asarray(missing.to_numpy())


def join_tables(name: str, parts: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Concatenate tables; each column has the type that all parts have in common."""
    import pyarrow

    typed_parts = []
    for part in parts:
        for place, field in enumerate(part.schema):
            # a column without values has no type; other files may have numbers there
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
