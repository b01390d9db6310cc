"""Tables of numbers and categories as rows of features: which columns there are, and what a row of them becomes.

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
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.files import replacing
from protosphere.data.forms.arrays import Arrays
from protosphere.data.forms.columns import (
    MISSING,
    MISSING_NUMBERS,
    TEXT_COLUMNS,
    Columns,
    class_numbers,
    group_values,
    is_number,
    is_string,
    refuse_absent,
    refuse_other_type,
    usual_label,
)
from protosphere.data.forms.folders import SCHEMA, Folder
from protosphere.data.forms.independent_rows import usable
from protosphere.data.forms.table_files import read_columns, types_of

if TYPE_CHECKING:
    import pyarrow

NUMBER, CATEGORY = "number", "category"
UNNAMED = ("", "Unnamed: 0", "__index_level_0__")
MOST_VALUES = 200  # of a category; more are ids or texts
NOTHING = "no value"
TRUTHS = ("false", "true")
_FEW = 10  # values that a category may have however few rows there are
NUMBERS_SHARE = 0.9  # of a column's values, from which on the rest are mistakes


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


def is_numbers(folder: Folder, columns: Columns, site: bool) -> bool:
    """Whether a folder's tables hold numbers and categories: a `columns.json` lies there, or no column is an image or
    has a usual name of texts, and it is no site's."""
    if folder.format not in ("csv", "json", "parquet") or columns.text:
        return False
    if (folder.root / SCHEMA).is_file():
        return True
    if site:
        return False
    try:
        types = types_of(folder.train[0])
    except Exception:
        # whoever reads the whole table says what is wrong with it
        return False
    pictures = holds_images(types)
    # parquet alone knows numbers from strings before every row is read
    texts = any(name in types and (folder.format != "parquet" or is_string(types[name])) for name in TEXT_COLUMNS)
    return not pictures and not texts and len(types) > 1


def holds_images(types: Mapping[str, Any]) -> bool:
    """Whether a table of these columns may hold images: strings and numbers alone are none."""
    return any(str(kind).startswith(("struct", "binary", "large_binary", "list")) for kind in types.values())


def read_table(folder: Folder, columns: Columns, alone: bool = False) -> Arrays:
    """The rows of a folder's tables as features, by its columns.json, or by what the whole table holds.

    Args:
        alone: rows that cannot be used are left out and decide on nothing else.

    Raises:
        DataError: no label column, a column of another kind than numbers or strings, a value that is none of its
            column's, unusable labels or groups, a columns.json that is none.
    """
    import pyarrow

    name = folder.name
    types = types_of(folder.train[0])
    refuse_absent(name, types, columns)
    label = columns.label or usual_label(name, types, types)
    other_columns = [label, *filter(None, (columns.group, columns.partition))]
    schema = read_schema(folder.root / SCHEMA) if (folder.root / SCHEMA).is_file() else None
    feature_names = (
        [column for column in types if column not in other_columns]
        if schema is None
        else [column.name for column in schema]
    )
    tables = {split: _table(folder, paths, [*feature_names, *other_columns]) for split, paths in folder.splits.items()}
    # labels of rows that stand alone are numbered row by row
    typed = [column for column in other_columns if not (alone and column == label)]
    for split, column in [(split, column) for split in tables for column in typed]:
        cells, of_train = tables[split].column(column), tables["train"].column(column)
        # what holds nothing is of no type
        if cells.null_count < len(cells) and of_train.null_count < len(of_train):
            refuse_other_type(name, split, column, cells.type, of_train.type)
    schema = _infer_columns(name, tables, feature_names) if schema is None else schema
    encoded = {split: encode(name, split, schema, table, alone) for split, table in tables.items()}
    if alone:
        for split, table in tables.items():
            groups = table.column(columns.group) if columns.group else None
            cells = pyarrow.array(~np.isinf(encoded[split]).any(axis=1))
            rows, numbers = usable(table.column(label), groups, cells, bool, folder.class_names)
            encoded[split] = encoded[split][rows]
            table = table.take(rows)
            tables[split] = table.set_column(table.column_names.index(label), label, [numbers])
    labels, class_names = class_numbers(
        name,
        label,
        {split: table.column(label) for split, table in tables.items()},
        folder.class_names,
        names=True,
        untyped=folder.format in ("csv", "parquet"),
    )
    extra = {
        column: group_values(name, column, {split: table.column(column) for split, table in tables.items()})
        for column in filter(None, (columns.group, columns.partition))
    }
    return Arrays(np.concatenate(list(encoded.values())), labels, len(encoded["train"]), class_names, extra, schema)


def encode(name: str, split: str, schema: Sequence[Column], table: pyarrow.Table, alone: bool = False) -> np.ndarray:
    """Cells as features: (n, F) float32, NaN for a number that is missing; with `alone` infinity in a row that holds
    what cannot be used.

    Raises:
        DataError: the table lacks a column, or a cell holds none of what its column can.
    """
    parts = [np.zeros((table.num_rows, 0), np.float32)]
    for column in schema:
        if column.name not in table.column_names:
            _refuse(
                name,
                f"has no column {column.name!r} in its {split} table, which {SCHEMA} names: add it",
            )
        cells = table.column(column.name)
        _refuse_odd_type(name, column.name, cells.type)
        part, wrong = features_of(column, cells)
        if alone:
            part[wrong] = np.inf
        elif wrong.any():
            row = int(wrong.argmax())
            what = cell_word(cells[row].as_py())
            if column.kind == NUMBER and what != NOTHING and is_number(str(cells[row].as_py())):
                _refuse(
                    name,
                    f"has {what} in row {row} of its {split} table in the column {column.name!r}, which is not finite: "
                    "correct that cell, or empty it where it has no value",
                )
            remedy = (
                'say "missing": true there'
                if what == NOTHING
                else f"it can be {column.kind} there: correct the row or the file"
            )
            _refuse(
                name,
                f"has {what} in row {row} of its {split} table in the column {column.name!r}, which {SCHEMA}, or the "
                f"rows that the columns were made of, do not have; {remedy}",
            )
        parts.append(part)
    return np.concatenate(parts, axis=1)


def features_of(column: Column, cells: Any) -> tuple[np.ndarray, np.ndarray]:
    """(n, features of the column), and which rows are wrong (n,)."""
    return _numbers(column, cells) if column.kind == NUMBER else _encode_one_hot(column, cells)


def cell_word(value: Any) -> str:
    """A cell for a sentence: its value, or NOTHING."""
    none = value is None or (isinstance(value, str) and value.strip() in MISSING) or value != value
    return NOTHING if none else f"{value!r}"


def _numbers(column: Column, cells: Any) -> tuple[np.ndarray, np.ndarray]:
    """(n, 1 or 2) features and which rows are wrong (n,)."""
    values, missing = _as_numbers(cells, truths=True)
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    wrong = (~missing & ~np.isfinite(numbers)) | (missing & (not column.missing))
    return np.stack([numbers, *([missing.astype(np.float32)] if column.missing else [])], axis=1), wrong


def _encode_one_hot(column: Column, cells: Any) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow
    import pyarrow.compute as pc

    texts, missing = _as_words(cells)
    codes = pc.index_in(texts, value_set=pyarrow.array(column.values, pyarrow.string())).fill_null(-1).to_numpy()
    hot = np.zeros((len(codes), column.features), np.float32)
    rows = np.flatnonzero(~missing & (codes >= 0))
    hot[rows, codes[rows]] = 1
    if column.missing:
        hot[missing, -1] = 1
    return hot, np.where(missing, not column.missing, codes < 0)


def numeric(schema: Sequence[Column]) -> np.ndarray:
    """Which features are the values of a number: (F,) bool."""
    kinds = [[column.kind == NUMBER, *[False] * (column.features - 1)] for column in schema if column.features]
    return np.array([kind for flags in kinds for kind in flags], dtype=bool)


def missing_rows(schema: Sequence[Column], inputs: np.ndarray) -> dict[str, int]:
    """How many rows lack a value of each column that may lack one."""
    ends = np.cumsum([column.features for column in schema])
    return {
        column.name: int(np.asarray(inputs[:, end - 1]).sum())
        for column, end in zip(schema, ends.tolist(), strict=True)
        if column.missing
    }


# --- cells, of whatever type they are --------------------------------------------------------------------------


def _as_numbers(cells: Any, truths: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Values (n,) float64, NaN for what is missing and infinity for what is no number; and which are missing. With
    `truths` the words true and false are 1 and 0, as the column has them where it is no strings."""
    import pyarrow
    import pyarrow.compute as pc

    if pyarrow.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if not pyarrow.types.is_string(cells.type) and not pyarrow.types.is_large_string(cells.type):
        values = cells.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
        return values, np.isnan(values)
    texts, missing = _as_words(cells, MISSING_NUMBERS)
    try:
        values = texts.cast(pyarrow.float64()).to_numpy().astype(np.float64)
    except pyarrow.ArrowInvalid:
        values = np.array([_number(word, truths) for word in texts.to_pylist()])
    # the word itself is no number, either
    values = np.where(np.isnan(values) & ~missing, np.inf, values)
    return values, missing if len(values) else np.asarray(pc.is_null(texts).to_numpy())


def _number(word: str | None, truths: bool) -> float:
    if truths and word is not None and word.lower() in TRUTHS:
        return float(TRUTHS.index(word.lower()))
    try:
        return np.nan if word is None else float(word)
    except ValueError:
        return np.inf


def _as_words(cells: Any, missing_words: Sequence[str] = MISSING) -> tuple[Any, np.ndarray]:
    """Cells as strings without spaces around them, null for what is missing; and which are missing."""
    import pyarrow
    import pyarrow.compute as pc

    texts = cells.cast(pyarrow.string())
    texts = pc.utf8_trim_whitespace(texts)
    missing = pc.is_in(texts, value_set=pyarrow.array([*missing_words, None], pyarrow.string()))
    return pc.if_else(missing, pyarrow.scalar(None, pyarrow.string()), texts), np.asarray(missing.to_numpy())


# --- what columns there are ----------------------------------------------------------------------------------


def columns_of(written: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The inverse of `as_json`."""
    return tuple(
        Column(entry["name"], entry["kind"], tuple(entry.get("values", ())), entry.get("missing", False))
        for entry in written
    )


def read_schema(path: Path) -> tuple[Column, ...]:
    """The columns that a columns.json names.

    Raises:
        DataError: it is none.
    """
    try:
        schema = columns_of(json.loads(path.read_text("utf-8"))["columns"])
        names = [column.name for column in schema]
        kinds = all(column.kind in (NUMBER, CATEGORY) and isinstance(column.missing, bool) for column in schema)
        are_strings = all(isinstance(word, str) for column in schema for word in (column.name, *column.values))
        distinct = all(len(set(values)) == len(values) for values in (names, *(column.values for column in schema)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        schema, kinds, are_strings, distinct = (), False, False, False
    if not (schema and kinds and are_strings and distinct):
        _refuse(
            str(path),
            'does not name columns as {"columns": [{"name": ..., "kind": "number" or "category", "values": [...], '
            '"missing": true or false}, ...]}, each once: have `protosphere data --export-columns FILE` write it',
        )
    return schema


def write_schema(path: Path, schema: Sequence[Column]) -> None:
    """Write a columns.json.

    Raises:
        DataError: it cannot be written.
    """
    try:
        with replacing(path) as temporary:
            lines = ",\n  ".join(json.dumps(column.as_json(), ensure_ascii=False) for column in schema)
            temporary.write_text(f'{{"columns": [\n  {lines}\n]}}\n', "utf-8")
    except OSError as error:
        raise DataError(f"the columns cannot be written to {str(path)!r} ({error.strerror or error}).") from None


def _infer_columns(name: str, tables: Mapping[str, pyarrow.Table], column_names: Sequence[str]) -> tuple[Column, ...]:
    index = next((column for column in column_names if column in UNNAMED), None)
    if index is not None:
        _refuse(
            name,
            f"has the column {index!r} without a name of its own, the numbers of rows as pandas writes them: write "
            f"the table with index=False, or name the columns to use in {SCHEMA}",
        )
    # of all splits: one may have whole numbers where another has fractions
    every = _join(name, [table.select(column_names) for table in tables.values()])
    train_rows = tables["train"].num_rows
    return tuple(_column(name, column, every.column(column), train_rows) for column in column_names)


def _column(name: str, column: str, cells: Any, train_rows: int) -> Column:
    _refuse_odd_type(name, column, cells.type)
    values, missing = _as_numbers(cells)
    if not np.isinf(values).any() or not _is_of_strings(cells.type):
        return Column(column, NUMBER, missing=bool(missing.any()))
    _refuse_stray(name, column, cells, values[~missing], train_rows)
    texts, missing = _as_words(cells)
    distinct = sorted(word for word in texts.unique().to_pylist() if word is not None)
    non_numbers = [word for word in distinct if not is_number(word)]
    if not non_numbers:
        # a number all the same: its row refuses infinity
        return Column(column, NUMBER, missing=bool(missing.any()))
    dialect = [word for word in non_numbers if is_number(word.rstrip(" %").replace(",", "."))]
    if len(dialect) == len(non_numbers) > _FEW:
        sign = "a percent sign" if "%" in dialect[0] else "a decimal comma"
        _refuse(
            name,
            f"has numbers with {sign} in the column {column!r}, such as {dialect[0]!r}: write them as plain numbers "
            "with a point",
        )
    if len(distinct) > MOST_VALUES or len(distinct) > max(_FEW, len(texts) // 2):
        likely = "if it holds texts, set text-column to it; if ids, "
        if len(non_numbers) < len(distinct) / 2:
            likely = f"if it holds numbers, {non_numbers[0]!r} is none, so correct or empty that cell; otherwise "
        _refuse(
            name,
            f"has {len(distinct)} different values in the column {column!r} of {len(texts)} rows, too many for a "
            f"category: {likely}name the columns to use in {SCHEMA}",
        )
    return Column(column, CATEGORY, tuple(distinct), bool(missing.any()))


def _refuse_stray(name: str, column: str, cells: Any, values: np.ndarray, train_rows: int) -> None:
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
        is_decimal = word.count(",") == 1 and is_number(word.replace(",", "."))
        where = str(row) if row < train_rows else f"{row - train_rows} of its test table"
        remedy = "write decimals with a point" if is_decimal else "correct that cell, or empty it where it has no value"
        _refuse(
            name,
            f"has {word!r} in row {where} in the column {column!r}, whose other values are numbers: {remedy}; a "
            f"category of all these values needs a {SCHEMA}",
        )


def _is_of_strings(kind: pyarrow.DataType) -> bool:
    """Whether cells of this type are strings; what holds nothing is of no type."""
    import pyarrow

    return is_string(kind) or pyarrow.types.is_dictionary(kind) or pyarrow.types.is_null(kind)


def _refuse_odd_type(name: str, column: str, kind: pyarrow.DataType) -> None:
    """Refuse a feature that is neither a string nor a number.

    Raises:
        DataError: it is none.
    """
    import pyarrow

    plain = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if not (_is_of_strings(kind) or plain or pyarrow.types.is_boolean(kind) or pyarrow.types.is_decimal(kind)):
        _refuse(
            name,
            f"has {kind} in the column {column!r}, but features are numbers and strings: write it as one of "
            f"them, or name the columns to use in {SCHEMA}",
        )


# --- files ---------------------------------------------------------------------------------------------------


def _table(folder: Folder, paths: tuple[Path, ...], column_names: Sequence[str]) -> pyarrow.Table:
    """Some columns of a split's files."""
    parts = []
    for path in paths:
        types = types_of(path)
        lacking = next((column for column in column_names if column not in types), None)
        if lacking is not None:
            _refuse(
                folder.name,
                f"has no column {lacking!r} in {path.name}; its columns are {', '.join(types)}: give all tables the "
                f"columns of the first, or of {SCHEMA}",
            )
        parts.append(read_columns(path, column_names))
    return _join(folder.name, parts)


def _join(name: str, parts: Sequence[pyarrow.Table]) -> pyarrow.Table:
    import pyarrow

    try:
        whole = pyarrow.concat_tables(map(_without_guesses, parts), promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        _refuse(name, f"has files of different columns ({error}): write them alike")
    for place, field in enumerate(whole.schema):
        if pyarrow.types.is_null(field.type):
            whole = whole.set_column(place, field.name, whole.column(place).cast(pyarrow.string()))
    return whole


def _without_guesses(part: pyarrow.Table) -> pyarrow.Table:
    """Strings none of which is there are of no type: other files may have numbers in that column."""
    import pyarrow

    for place, field in enumerate(part.schema):
        if is_string(field.type) and part.column(place).null_count == part.num_rows:
            part = part.set_column(place, field.name, pyarrow.nulls(part.num_rows))
    return part


def _refuse(name: str, sentence: str) -> NoReturn:
    raise DataError(f"{name!r} {sentence}.")
