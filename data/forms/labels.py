"""Labels, groups and names of sites: a table's columns as numbers, or one sentence on the row that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError, LabelsError

if TYPE_CHECKING:
    import pyarrow

    Cells = Mapping[str, pyarrow.ChunkedArray]  # by split, training rows first

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


def refuse_other_type(name: str, column: str, cells_by_split: Cells) -> None:
    """Refuse labels, groups or sites of another type in a split than in the training table: they would not be equal.

    Raises:
        DataError: they are.
    """

    def kind_of(cells: pyarrow.ChunkedArray) -> str:
        # a missing value makes fractions of whole numbers
        return "whole numbers" if str(cells.type) in ("double", "float", "halffloat") else name_kind(cells.type)

    train = cells_by_split["train"]
    for split, cells in cells_by_split.items():
        # what holds nothing is of no type
        if cells.null_count == len(cells) or train.null_count == len(train):
            continue
        if kind_of(cells) != kind_of(train):
            raise DataError(
                f"column {column!r} holds {kind_of(cells)} in the {split} table of {name!r}, but {kind_of(train)} in "
                "the train table: write both alike."
            )


def unify(cells: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Labels, groups or sites that are equal however they were written: without blanks around them, and a whole number
    without a point (7.0)."""
    import pyarrow
    import pyarrow.compute as pc

    try:
        if is_string(cells.type):
            texts = pc.utf8_trim_whitespace(cells)
            return pc.replace_substring_regex(texts, pattern=r"^(-?[0-9]+)\.0+$", replacement=r"\1")
        if pyarrow.types.is_floating(cells.type):
            return pc.if_else(pc.is_nan(cells), None, cells).cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        # not UTF-8, or fractions: the checks of single rows name the first
        pass
    return cells


def read_values(name: str, column: str, cells_by_split: Cells) -> np.ndarray:
    """The groups, or the sites, of all rows: (n,) whole numbers or strings.

    Raises:
        DataError: they are neither, or the first row without one.
    """
    parts = []
    for split, cells in cells_by_split.items():
        if not len(cells):
            continue
        values = unify(cells)
        if name_kind(values.type) not in ("strings", "whole numbers"):
            raise DataError(
                f"column {column!r} of {name!r} holds {name_kind(values.type)}, but groups must be whole numbers or "
                "strings."
            )
        _refuse_missing(name, split, values, "group", f" in column {column!r}")
        parts.append(values.to_numpy())
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def read_labels(
    name: str, column: str, cells_by_split: Cells, class_names: tuple[str, ...], *, untyped: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class number of each row, (n,) int64, and the classes' names.

    Names are numbered in the order of `class_names`, or sorted where there are none.

    Args:
        name: the data set's, for messages. column: that of the labels.
        class_names: those that are known, () for none.
        untyped: the format may write numbers as strings, so whole numbers written out are class numbers, unless a
            class has such a name.

    Raises:
        DataError: the column holds neither names nor whole numbers, the first row without a label or with one that is
            no class, too many classes, what a regression predicts.
    """
    labels = {split: unify(cells) for split, cells in cells_by_split.items() if len(cells)}
    if any(is_string(values.type) for values in labels.values()):
        for split, values in labels.items():
            _refuse_missing(name, split, values, "label")
        distinct = sorted({label for values in labels.values() for label in values.unique().to_pylist()})
        if not class_names:
            _refuse_missing_words(name, labels, distinct)
            _refuse_target(name, column, distinct, sum(map(len, labels.values())))
        if (
            untyped
            and all(map(_WHOLE_NUMBER.fullmatch, distinct))
            and not any(map(_WHOLE_NUMBER.fullmatch, class_names))
        ):
            labels = {split: values.cast("int64") for split, values in labels.items()}
        else:
            if not class_names:
                _refuse_many(name, column, len(distinct))
                class_names = tuple(distinct)
            labels = {split: _number_names(name, split, values, class_names) for split, values in labels.items()}

    numbers = [_check_numbers(name, column, split, values, class_names) for split, values in labels.items()]
    if not class_names:
        count = max((int(part.max()) for part in numbers), default=-1) + 1
        _refuse_many(name, column, count)
        class_names = tuple(map(str, range(count)))
    return np.concatenate([np.empty(0, np.int64), *(part.astype(np.int64) for part in numbers)]), class_names


def _number_names(
    name: str, split: str, labels: pyarrow.ChunkedArray, class_names: tuple[str, ...]
) -> pyarrow.ChunkedArray:
    import pyarrow
    import pyarrow.compute as pc

    name_array = unify(pyarrow.chunked_array([pyarrow.array(class_names, labels.type)]))
    numbers = pc.index_in(labels, value_set=name_array.combine_chunks())
    unknown = np.flatnonzero(numbers.is_null().to_numpy())
    if unknown.size:
        row = int(unknown[0])
        raise LabelsError(
            f"row {row} of the {split} table of {name!r} has the label {labels[row].as_py()!r}, but classes.txt names "
            "no such class: add it there or correct the row."
        )
    return numbers


def _check_numbers(
    name: str, column: str, split: str, values: pyarrow.ChunkedArray, class_names: tuple[str, ...]
) -> np.ndarray:
    if name_kind(values.type) != "whole numbers":
        bins = "; put numbers with decimals into a few bins, as pandas.cut does" if "double" in str(values.type) else ""
        raise DataError(
            f"column {column!r} of {name!r} holds {values.type}, but labels must be class numbers 0, 1, 2, …{bins}."
        )
    _refuse_missing(name, split, values, "label")
    labels: np.ndarray = values.to_numpy()
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names) if class_names else False))
    if wrong.size:
        row = wrong[0]
        allowed = "0 or more"
        if class_names:
            allowed = f"0 to {len(class_names) - 1}, since there are {len(class_names)} class names"
        raise LabelsError(
            f"row {row} of the {split} table of {name!r} has the label {labels[row]}, but labels must be {allowed}: "
            "correct the row or the class names."
        )
    return labels


# --- what is no label or group ---------------------------------------------------------------------------------------


def _refuse_missing(name: str, split: str, values: pyarrow.ChunkedArray, what: str, where: str = "") -> None:
    import pyarrow
    import pyarrow.compute as pc

    try:
        values.validate(full=True)
    except pyarrow.ArrowInvalid:
        row = next(row for row, value in enumerate(values) if not _is_utf8(value))
        raise DataError(
            f"row {row} of the {split} table of {name!r} has a label or group that is not UTF-8: write it in UTF-8."
        ) from None
    missing = values.is_null()
    if is_string(values.type):
        missing = pc.or_kleene(missing, pc.equal(values, ""))
    rows = np.flatnonzero(missing.to_numpy())
    if rows.size:
        raise DataError(
            f"row {rows[0]} of the {split} table of {name!r} has no {what}{where}: give it one or drop the row."
        )


def _is_utf8(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _refuse_missing_words(name: str, labels: Cells, distinct: Sequence[str]) -> None:
    """Refuse a word for a missing value beside labels that are otherwise numbers: it would become a class."""
    missing_words = [label for label in distinct if label in MISSING_NUMBERS]
    other_labels = [label for label in distinct if label not in MISSING_NUMBERS]
    if not missing_words or not other_labels or not all(map(is_number, other_labels)):
        return
    for split, values in labels.items():
        for row, value in enumerate(values.to_pylist()):
            if value in missing_words:
                raise LabelsError(
                    f"row {row} of the {split} table of {name!r} has no label (it holds {value!r}): give it one or "
                    "drop the row."
                )


def _refuse_target(name: str, column: str, distinct: Sequence[str], rows: int) -> None:
    """Refuse labels with decimals that are nearly all different: what a regression predicts."""
    decimals = [label for label in distinct if not _WHOLE_NUMBER.fullmatch(label)]
    if decimals and rows > MOST_ROWS_A_CLASS and len(distinct) > rows / 2 and all(map(is_number, distinct)):
        raise LabelsError(
            f"column {column!r} of {name!r} holds decimals, {len(distinct)} different ones in {rows} rows: "
            "a label is a class; put the numbers into a few bins, as pandas.cut does, or set label-column to the "
            "column with the classes."
        )


def _refuse_many(name: str, column: str, count: int) -> None:
    if count > MOST_NAMES:
        raise LabelsError(
            f"column {column!r} of {name!r} would make {count} classes, more than {MOST_NAMES}: set label-column to "
            "the one with the classes, or list the classes in classes.txt."
        )
