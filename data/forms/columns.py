"""Which columns of a table are a data set's inputs, labels and groups, and whether their values can be used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError, LabelsError

if TYPE_CHECKING:
    import datasets
    import pyarrow

IMAGE_COLUMNS = ("image", "img")
TEXT_COLUMNS = ("text", "sentence", "content", "document", "note", "input")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "character")
# More classes than this are no classes: texts, or the ids of rows.
MOST_NAMES = 10_000
STRINGS = ("string", "large_string", "string_view")
# a word that stands for a missing value; in a column of numbers the second ones, too
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
MISSING_NUMBERS = (
    *MISSING,
    "NULL",
    "Null",
    "None",
    "none",
    "NAN",
    "na",
    "n/a",
    "N.A.",
    "n.a.",
    "#N/A",
    "#NA",
    "<NA>",
    "-",
    "--",
    ".",
)
MOST_ROWS_A_CLASS = 20  # in a table of fewer rows each may be of a class of its own
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns. `text`, `label`: "" for the usual names; `group`: "" for no groups.

    Rows that share a value in the column `group` (a patient's id) never come to two sides of a split; those that share
    one in `partition` (a hospital) come to one client.
    """

    text: str = ""
    label: str = ""
    group: str = ""
    partition: str = ""

    @property
    def named(self) -> dict[str, str]:
        """Setting to column, for those that are named."""
        pairs = {"text-column": self.text, "label-column": self.label, "group-column": self.group}
        pairs["partition-column"] = self.partition
        return {setting: column for setting, column in pairs.items() if column}


USUAL = Columns()


def roles(name: str, features: Mapping[str, Any], columns: Columns, texts_only: bool) -> tuple[str, dict[str, str]]:
    """What a table holds, "image" or "text", and its columns' parts: {column: "inputs", "label", "group" or
    "partition"}.

    A table is text if `columns.text` is named or `texts_only`, or if it has no image column and has a text column of a
    usual name.

    Args:
        name: the data set's, for errors.
        features: column to its Hugging Face feature.
        columns: what the settings name.
        texts_only: the format holds no images.

    Raises:
        DataError: a column that does not exist, one named twice, no column of inputs or of labels.
    """
    refuse_absent(name, features, columns)
    chosen = list(columns.named.values())
    free = {column: feature for column, feature in features.items() if column not in chosen}
    image = None if columns.text or texts_only else _image_column(free)
    strings = [column for column in TEXT_COLUMNS if column in free and (texts_only or is_string(free[column]))]
    text = columns.text or next(iter(strings), "")
    if not image and not text:
        kind, remedy = "text", f"name it {TEXT_COLUMNS[0]} or set text-column"
        if not texts_only:
            kind = "image"
            remedy = (
                f"name one {IMAGE_COLUMNS[0]} with encoded images as struct{{bytes, path}}, or set text-column to the "
                "one with texts"
            )
        raise DataError(
            f"{name!r} has no {kind} column; {_listed(features)}: {remedy}; a site's table of numbers needs a "
            "columns.json.",
        )
    inputs = image or text
    label = columns.label or usual_label(name, features, [column for column in free if column != inputs])
    role_by_column = {inputs: "inputs", label: "label"} | ({columns.group: "group"} if columns.group else {})
    role_by_column |= {columns.partition: "partition"} if columns.partition else {}
    return "image" if image else "text", role_by_column


def refuse_absent(name: str, features: Mapping[str, Any], columns: Columns) -> None:
    """Refuse columns of settings that a table lacks, or that are one and the same.

    Raises:
        DataError: names the first.
    """
    for setting, column in columns.named.items():
        if column not in features:
            raise DataError(
                f"{setting} is {column!r}, but {name!r} has no such column; {_listed(features)}: name one of them.",
            )
    chosen = list(columns.named.values())
    if len(set(chosen)) < len(chosen):
        settings = ", ".join(f"{setting} = {column!r}" for setting, column in columns.named.items())
        raise DataError(f"{settings} name one column of {name!r} twice: name a column for each.")


def usual_label(name: str, columns: Iterable[str], free: Collection[str]) -> str:
    """The first of `free` that has a usual name of labels.

    Raises:
        DataError: none has; it names all `columns`.
    """
    label = next((column for column in LABEL_COLUMNS if column in free), "")
    if not label:
        raise DataError(
            f"{name!r} has no label column; {_listed(columns)}: name the one with the classes {LABEL_COLUMNS[0]}, or "
            "set label-column.",
        )
    return label


def _listed(columns: Iterable[str]) -> str:
    names = ", ".join(columns)
    return f"its columns are {names}" if names else "it has no columns"


def _image_column(features: Mapping[str, Any]) -> str | None:
    import datasets

    typed = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    named = [column for column in IMAGE_COLUMNS if _holds_images(features.get(column))]
    return next(iter(typed or named), None)


def _holds_images(feature: Any) -> bool:
    return isinstance(feature, dict) and "bytes" in feature


def is_string(kind: Any) -> bool:
    """Whether an Arrow type, or that of a column of `datasets`, is that of strings."""
    return str(getattr(kind, "dtype", kind)) in STRINGS


def _kind(kind: pyarrow.DataType) -> str:
    if is_string(kind):
        return "strings"
    return "whole numbers" if str(kind).startswith(("int", "uint")) else str(kind)


def _kind_of_cells(kind: pyarrow.DataType) -> str:
    """As `_kind`, where fractions may be whole numbers that a missing value has given a point."""
    return "whole numbers" if str(kind) in ("double", "float", "halffloat") else _kind(kind)


def in_one_form(values: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Labels, groups or names of sites that are the same however they were written: without blanks around them, and a
    whole number without a point (7.0)."""
    import pyarrow
    import pyarrow.compute as pc

    try:
        if is_string(values.type):
            texts = pc.utf8_trim_whitespace(values)
            return pc.replace_substring_regex(texts, pattern=r"^(-?[0-9]+)\.0+$", replacement=r"\1")
        if pyarrow.types.is_floating(values.type):
            return pc.if_else(pc.is_nan(values), None, values).cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        # not UTF-8, or fractions: for whoever looks at single rows
        pass
    return values


def check_alike(name: str, tables: Mapping[str, datasets.Dataset], role_by_column: Mapping[str, str]) -> None:
    """Refuse tables that lack one of the columns `role_by_column`, or hold labels or groups of another type.

    Raises:
        DataError: the first table and column of which that is so.
    """
    train = tables["train"]
    for split, table in tables.items():
        if not set(role_by_column) <= set(table.column_names):
            raise DataError(
                f"the {split} table of {name!r} has the columns {', '.join(table.column_names)}, but the train table "
                f"{' and '.join(role_by_column)}: give both tables the same columns.",
            )
        for column in [column for column, role in role_by_column.items() if role != "inputs"]:
            types = [side.features.arrow_schema.field(column).type for side in (table, train)]
            if len(table) and len(train):
                refuse_other_type(name, split, column, *types)


def refuse_other_type(
    name: str, split: str, column: str, of_split: pyarrow.DataType, of_train: pyarrow.DataType
) -> None:
    """Refuse labels or groups of another type in a split than in the training table: they would not be equal.

    Raises:
        DataError: they are.
    """
    kind, train_kind = _kind_of_cells(of_split), _kind_of_cells(of_train)
    if kind != train_kind:
        raise DataError(
            f"column {column!r} holds {kind} in the {split} table of {name!r}, but {train_kind} in the train table: "
            "write both alike.",
        )


def check_strings(name: str, split: str, table: datasets.Dataset, column: str) -> None:
    """Refuse a column of texts that holds no strings; a table without rows may be of any type.

    Raises:
        DataError: it holds something else.
    """
    if len(table) and not is_string(table.features[column]):
        kind = _kind(table.features.arrow_schema.field(column).type)
        raise DataError(
            f"column {column!r} of the {split} table of {name!r} holds {kind}, but texts must be strings.",
        )


def group_values(name: str, column: str, values_by_split: Mapping[str, pyarrow.ChunkedArray]) -> np.ndarray:
    """The groups of all rows, (n,), training rows first.

    Raises:
        DataError: they are neither whole numbers nor strings, or the first row without one.
    """
    filled = {split: in_one_form(values) for split, values in values_by_split.items() if len(values)}
    for split, values in filled.items():
        if _kind(values.type) not in ("strings", "whole numbers"):
            raise DataError(
                f"column {column!r} of {name!r} holds {_kind(values.type)}, but groups must be whole numbers or "
                "strings.",
            )
        _refuse_missing(name, split, values, "group", f" in column {column!r}")
    parts = [values.to_numpy() for values in filled.values()]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _refuse_missing(name: str, split: str, values: pyarrow.ChunkedArray, column: str, where: str = "") -> None:
    import pyarrow
    import pyarrow.compute as pc

    try:
        values.validate(full=True)
    except pyarrow.ArrowInvalid:
        row = next(row for row, value in enumerate(values) if not _is_utf8(value))
        raise DataError(
            f"row {row} of the {split} table of {name!r} has a label or group that is not UTF-8: write it in UTF-8.",
        ) from None
    missing = values.is_null()
    if is_string(values.type):
        missing = pc.or_kleene(missing, pc.equal(pc.utf8_trim_whitespace(values), ""))
    rows = np.flatnonzero(missing.to_numpy())
    if rows.size:
        row = rows[0]
        raise DataError(
            f"row {row} of the {split} table of {name!r} has no {column}{where}: give it one or drop the row.",
        )


def _is_utf8(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def class_numbers(
    name: str,
    column: str,
    labels_by_split: Mapping[str, pyarrow.ChunkedArray],
    class_names: tuple[str, ...],
    *,
    names: bool,
    untyped: bool,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class number of each row, (n,) int64, training rows first, and the classes' names.

    Names are numbered in the order of `class_names`, or sorted where there are none.

    Args:
        name: the data set's, for errors.
        column: that of the labels.
        class_names: those that are known, () for none.
        names: whether labels may be classes' names.
        untyped: the format knows strings only, so whole numbers written out are class numbers, unless a class has
            such a name.

    Raises:
        DataError: the column holds neither, the first row without a label or with one that is no class, too many
            classes.
    """
    labels = {split: in_one_form(values) for split, values in labels_by_split.items() if len(values)}
    if names and any(is_string(values.type) for values in labels.values()):
        for split, values in labels.items():
            _refuse_missing(name, split, values, "label")
        distinct = sorted({label for values in labels.values() for label in values.unique().to_pylist()})
        if not class_names:
            _refuse_missing_words(name, labels, distinct)
            _refuse_target(name, column, distinct, sum(map(len, labels.values())))
        if untyped and all(map(_NUMBER.fullmatch, distinct)) and not any(map(_NUMBER.fullmatch, class_names)):
            labels = {split: values.cast("int64") for split, values in labels.items()}
        else:
            if not class_names:
                _refuse_many(name, column, len(distinct))
                class_names = tuple(distinct)
            labels = {split: _codes(name, split, values, class_names) for split, values in labels.items()}
    parts = [_checked(name, column, split, values, class_names) for split, values in labels.items()]
    if not class_names:
        count = max((int(numbers.max()) for numbers in parts), default=-1) + 1
        _refuse_many(name, column, count)
        class_names = tuple(map(str, range(count)))
    return np.concatenate([np.empty(0, dtype=np.int64), *(numbers.astype(np.int64) for numbers in parts)]), class_names


def _refuse_missing_words(name: str, labels: Mapping[str, pyarrow.ChunkedArray], distinct: Sequence[str]) -> None:
    """Refuse a word for a missing value beside labels that are otherwise numbers, which would become a class."""
    words = [label for label in distinct if label in MISSING_NUMBERS]
    if words and len(words) < len(distinct) and all(is_number(label) for label in distinct if label not in words):
        for split, values in labels.items():
            row = next((row for row, value in enumerate(values.to_pylist()) if value in words), None)
            if row is not None:
                raise LabelsError(
                    f"row {row} of the {split} table of {name!r} has no label (it holds {values[row].as_py()!r}): give "
                    "it one or drop the row."
                )


def _refuse_target(name: str, column: str, distinct: Sequence[str], rows: int) -> None:
    """Refuse labels with decimals that are nearly all different: what a regression predicts."""
    decimals = [label for label in distinct if is_number(label) and not _NUMBER.fullmatch(label)]
    if decimals and rows > MOST_ROWS_A_CLASS and len(distinct) > rows / 2 and all(map(is_number, distinct)):
        raise LabelsError(
            f"column {column!r} of {name!r} holds decimals, {len(distinct)} different ones in {rows} rows: "
            "a label is a class; put the numbers into a few bins, as pandas.cut does, or set label-column to the "
            "column with the classes."
        )


def is_number(word: str) -> bool:
    """Whether a word is one, infinity too."""
    try:
        return not np.isnan(float(word))
    except ValueError:
        return False


def _checked(
    name: str, column: str, split: str, values: pyarrow.ChunkedArray, class_names: tuple[str, ...]
) -> np.ndarray:
    if _kind(values.type) != "whole numbers":
        bins = "; put numbers with decimals into a few bins, as pandas.cut does" if "double" in str(values.type) else ""
        raise DataError(
            f"column {column!r} of {name!r} holds {values.type}, but labels must be class numbers 0, 1, 2, …{bins}.",
        )
    _refuse_missing(name, split, values, "label")
    labels: np.ndarray = values.to_numpy()
    allowed = (
        f"0 to {len(class_names) - 1}, since there are {len(class_names)} class names" if class_names else "0 or more"
    )
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names) if class_names else False))
    if wrong.size:
        row = wrong[0]
        raise LabelsError(
            f"row {row} of the {split} table of {name!r} has the label {labels[row]}, but labels must be "
            f"{allowed}: correct the row or the class names.",
        )
    return labels


def _refuse_many(name: str, column: str, count: int) -> None:
    """Labels of so many kinds can be no classes."""
    if count > MOST_NAMES:
        raise LabelsError(
            f"column {column!r} of {name!r} would make {count} classes, more than {MOST_NAMES}: set label-column to "
            "the one with the classes, or list the classes in classes.txt.",
        )


def _codes(name: str, split: str, labels: pyarrow.ChunkedArray, class_names: tuple[str, ...]) -> pyarrow.ChunkedArray:
    import pyarrow
    import pyarrow.compute as pc

    known = in_one_form(pyarrow.chunked_array([pyarrow.array(class_names, labels.type)]))
    codes = pc.index_in(labels, value_set=known.combine_chunks())
    unknown = np.flatnonzero(codes.is_null().to_numpy())
    if unknown.size:
        row = int(unknown[0])
        raise LabelsError(
            f"row {row} of the {split} table of {name!r} has the label {labels[row].as_py()!r}, but classes.txt names "
            "no such class: add it there or correct the row.",
        )
    return codes
