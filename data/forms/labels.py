"""Labels, groups and names of sites: a table's columns as numbers, or one sentence on the row that cannot be used."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError, LabelsError
from protosphere.data.forms.columns import Columns
from protosphere.data.partition.groups import by_first

if TYPE_CHECKING:
    import pyarrow

# More classes than this are no classes: texts, or the ids of rows.
MOST_NAMES = 10_000
MOST_ROWS_A_CLASS = 20  # in a table of fewer rows each may be of a class of its own
STRINGS = ("string", "large_string", "string_view")
# a word that stands for a missing value; in a column of numbers the second ones, too
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
MISSING_NUMBERS = (
    *MISSING,
    *("NULL", "Null", "None", "none", "NAN", "na", "n/a", "N.A.", "n.a.", "#N/A", "#NA", "<NA>", "-", "--", "."),
)
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def is_string(kind: Any) -> bool:
    """Whether an Arrow type is that of strings."""
    return str(kind) in STRINGS


def is_number(word: str) -> bool:
    """Whether a word is one, infinity too."""
    try:
        return not np.isnan(float(word))
    except ValueError:
        return False


def name_kind(kind: pyarrow.DataType) -> str:
    """What a column holds, for a sentence."""
    if is_string(kind):
        return "strings"
    return "whole numbers" if str(kind).startswith(("int", "uint")) else str(kind)


@dataclass(frozen=True, eq=False)
class Key:
    """A column of labels, groups or sites of all tables of a data set, one below another.

    Values are equal however they were written: without blanks around them, a whole number without a point (7.0), and in
    one of Unicode's forms.
    """

    data_set: str
    column: str
    values: pyarrow.ChunkedArray
    train_rows: int

    @classmethod
    def of(cls, data_set: str, column: str, cells_by_split: Mapping[str, pyarrow.ChunkedArray]) -> Key:
        """The key of a column whose cells are given by split, the training table's first.

        Raises:
            DataError: it is of another type in the test than in the training table, so that no values would be equal.
        """
        import pyarrow

        train = cells_by_split["train"]
        parts = []
        for split, cells in cells_by_split.items():
            # what holds nothing is of no type
            if cells.null_count < len(cells) and train.null_count < len(train):
                kind, train_kind = _kind_of(cells), _kind_of(train)
                if kind != train_kind:
                    raise DataError(
                        f"column {column!r} holds {kind} in the {split} table of {data_set!r}, but {train_kind} in the "
                        "train table: write both alike."
                    )
            if len(cells):
                parts.append(pyarrow.table({"key": _unify(cells)}))
        table = pyarrow.concat_tables(parts, promote_options="permissive") if parts else pyarrow.table({"key": train})
        return cls(data_set, column, table.column(0), len(train))

    def place(self, row: int) -> str:
        """Where a row stands, for a sentence."""
        if row < self.train_rows:
            return f"row {row} of the train table of {self.data_set!r}"
        return f"row {row - self.train_rows} of the test table of {self.data_set!r}"

    def refuse_missing(self, what: str) -> None:
        """Refuse rows without a value, or with one that is not UTF-8.

        Raises:
            DataError: the first.
        """
        import pyarrow
        import pyarrow.compute as pc

        try:
            self.values.validate(full=True)
        except pyarrow.ArrowInvalid:
            row = next(row for row, value in enumerate(self.values) if value.is_valid and to_python(value) is None)
            raise DataError(f"{self.place(row)} has a {what} that is not UTF-8: write it in UTF-8.") from None
        missing = self.values.is_null()
        if is_string(self.values.type):
            missing = pc.or_kleene(missing, pc.equal(self.values, ""))
        rows = np.flatnonzero(missing.to_numpy())
        if rows.size:
            raise DataError(
                f"{self.place(int(rows[0]))} has no {what} in column {self.column!r}: give it one or drop the row."
            )


def _kind_of(cells: pyarrow.ChunkedArray) -> str:
    # a missing value makes fractions of whole numbers
    return "whole numbers" if str(cells.type) in ("double", "float", "halffloat") else name_kind(cells.type)


def _unify(cells: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    import pyarrow
    import pyarrow.compute as pc

    try:
        if is_string(cells.type):
            # one letter with an accent can be written in two ways
            texts = pc.utf8_trim_whitespace(pc.utf8_normalize(cells, form="NFC"))
            return pc.replace_substring_regex(texts, pattern=r"^(-?[0-9]+)\.0+$", replacement=r"\1")
        if pyarrow.types.is_floating(cells.type):
            return pc.if_else(pc.is_nan(cells), None, cells).cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        # not UTF-8, or fractions: the checks of single rows name the first
        pass
    return cells


def to_python(cell: Any) -> Any:
    """The value of one of Arrow's cells; None for what is missing or no UTF-8."""
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return None


def read_keys(
    data_set: str,
    cells: Mapping[str, Mapping[str, pyarrow.ChunkedArray]],
    label: str,
    columns: Columns,
    class_names: tuple[str, ...],
    are_positions: bool = False,
) -> dict[str, Any]:
    """Labels, groups and sites of all rows, by their names in Samples.

    Args:
        cells: of each column by split. label: the column of labels.
        class_names: those that are known, () for none.
        are_positions: whether stored numbers are class numbers whatever the classes are called.

    Raises:
        DataError: what read_labels and read_values raise.
    """
    keys: dict[str, Any] = {}
    key = Key.of(data_set, label, cells[label])
    keys["labels"], keys["class_names"] = read_labels(key, class_names, are_positions)
    if columns.group:
        keys["groups"] = by_first(read_values(Key.of(data_set, columns.group, cells[columns.group])))
    if columns.partition:
        values = read_values(Key.of(data_set, columns.partition, cells[columns.partition]))
        site_names, numbers = np.unique(values, return_inverse=True)
        keys["sites"], keys["site_names"] = numbers.astype(np.int64), tuple(map(str, site_names.tolist()))
    return keys


def read_values(key: Key) -> np.ndarray:
    """The groups, or the sites, of all rows: (n,) whole numbers or strings.

    Raises:
        DataError: they are neither, or the first row without one.
    """
    if not len(key.values):
        return np.empty(0, dtype=np.int64)
    kind = name_kind(key.values.type)
    if kind not in ("strings", "whole numbers"):
        raise DataError(
            f"column {key.column!r} of {key.data_set!r} holds {kind}, but groups must be whole numbers or strings."
        )
    key.refuse_missing("group")
    values: np.ndarray = key.values.to_numpy()
    return values


def are_called_by_numbers(class_names: Sequence[str]) -> bool:
    """Whether a class is called by a whole number that is not its position, as grades are: 1, 2, 3. Numbers are then
    names, in a file of any format. In 0, 1, 2, other they are both."""
    spellings = map(word_of, class_names)
    return any(_WHOLE_NUMBER.fullmatch(word) and word != str(position) for position, word in enumerate(spellings))


def numbering(class_names: Sequence[str], are_positions: bool = False) -> Callable[[Any], int | None]:
    """The function from a label to its class number, None for what is no class; it reads single labels as `read_labels`
    reads columns.

    Args:
        are_positions: as in `read_labels`.
    """
    position = {word_of(name): label for label, name in reversed(list(enumerate(class_names)))}
    has_numbers = are_called_by_numbers(class_names)

    def number_of(value: Any) -> int | None:
        if isinstance(value, bool):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            # one missing label makes fractions of all numbers of a column
            value = int(value)
        if not isinstance(value, str | bytes | int):
            return None
        word, is_position = word_of(value), are_positions and isinstance(value, int)
        if word in position and not is_position:
            return position[word]
        if not _WHOLE_NUMBER.fullmatch(word) or (has_numbers and not is_position):
            return None
        return int(word) if 0 <= int(word) < len(class_names) else None

    return number_of


def word_of(value: Any) -> str:
    """A label as a word, written as `Key` has it."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    return re.sub(r"^(-?[0-9]+)\.0+$", r"\1", unicodedata.normalize("NFC", str(value)).strip())


def read_labels(
    key: Key, class_names: tuple[str, ...], are_positions: bool = False
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class number of each row, (n,) int64, and the classes' names.

    Names are numbered in the order of `class_names`, or sorted where there are none. Whole numbers, stored or written
    out, are class numbers, unless a class has such a name (`are_called_by_numbers`).

    Args:
        class_names: those that are known, () for none.
        are_positions: whether stored numbers are class numbers whatever the classes are called.

    Raises:
        DataError: the column holds neither names nor whole numbers, the first row without a label or with one that is
            no class, too many classes, what a regression predicts.
    """
    import pyarrow
    import pyarrow.compute as pc

    values = key.values
    if not len(values):
        return np.empty(0, np.int64), class_names
    if not is_string(values.type) and name_kind(values.type) != "whole numbers":
        bins = "; put numbers with decimals into a few bins, as pandas.cut does" if "double" in str(values.type) else ""
        raise DataError(
            f"column {key.column!r} of {key.data_set!r} holds {values.type}, but labels must be class numbers "
            f"0, 1, 2, …{bins}."
        )
    key.refuse_missing("label")
    if not is_string(values.type) and not are_positions and are_called_by_numbers(class_names):
        values = values.cast(pyarrow.string())
    if is_string(values.type):
        distinct = sorted(values.unique().to_pylist())
        if not class_names:
            _refuse_missing_words(key, distinct)
            _refuse_target(key, distinct)
        are_numbers = all(map(_WHOLE_NUMBER.fullmatch, distinct))
        if not are_numbers or are_called_by_numbers(class_names):
            if not class_names:
                _refuse_many(key, len(distinct))
                class_names = tuple(distinct)
            names = _unify(pyarrow.chunked_array([pyarrow.array(class_names, values.type)]))
            numbers = pc.index_in(values, value_set=names.combine_chunks())
            unknown = np.flatnonzero(numbers.is_null().to_numpy())
            if unknown.size:
                row = int(unknown[0])
                raise LabelsError(
                    f"{key.place(row)} has the label {values[row].as_py()!r}, but classes.txt names no such class: add "
                    "it there or correct the row."
                )
            return numbers.to_numpy().astype(np.int64), class_names
        values = values.cast("int64")

    labels = values.to_numpy().astype(np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names) if class_names else False))
    if wrong.size:
        row = int(wrong[0])
        allowed = "0 or more"
        if class_names:
            allowed = f"0 to {len(class_names) - 1}, since there are {len(class_names)} class names"
        raise LabelsError(
            f"{key.place(row)} has the label {labels[row]}, but labels must be {allowed}: correct the row or the class "
            "names."
        )
    if not class_names:
        _refuse_many(key, int(labels.max()) + 1)
        class_names = tuple(map(str, range(int(labels.max()) + 1)))
    return labels, class_names


def _refuse_missing_words(key: Key, distinct: Sequence[str]) -> None:
    """Refuse a word for a missing value, which would become a class; beside numbers there are more such words."""
    other_labels = [label for label in distinct if label not in MISSING_NUMBERS]
    missing_words = MISSING_NUMBERS if other_labels and all(map(is_number, other_labels)) else MISSING
    if not other_labels or set(missing_words).isdisjoint(distinct):
        return
    for row, value in enumerate(key.values.to_pylist()):
        if value in missing_words:
            raise LabelsError(
                f"{key.place(row)} has no label (it holds {value!r}): give it one or drop the row, or list the classes "
                "(in classes.txt, or as `classes` of arrays) if that is one."
            )


def _refuse_target(key: Key, distinct: Sequence[str]) -> None:
    """Refuse labels with decimals that are nearly all different: what a regression predicts."""
    rows = len(key.values)
    decimals = [label for label in distinct if not _WHOLE_NUMBER.fullmatch(label)]
    if decimals and rows > MOST_ROWS_A_CLASS and len(distinct) > rows / 2 and all(map(is_number, distinct)):
        raise LabelsError(
            f"column {key.column!r} of {key.data_set!r} holds decimals, {len(distinct)} different ones in {rows} rows: "
            "a label is a class; put the numbers into a few bins, as pandas.cut does, or set label-column to the "
            "column with the classes."
        )


def _refuse_many(key: Key, count: int) -> None:
    if count > MOST_NAMES:
        raise LabelsError(
            f"column {key.column!r} of {key.data_set!r} would make {count} classes, more than {MOST_NAMES}: set "
            "label-column to the one with the classes, or list the classes in classes.txt."
        )
