"""Labels, groups and sites: the values of a column as numbers, or one sentence on the row that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError, LabelsError
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.words import MISSING, MISSING_NUMBERS, is_number, place_of, to_python, word_of
from protosphere.data.samples import Samples

if TYPE_CHECKING:
    import pyarrow

MOST_CLASSES = 10_000  # a column with more distinct values holds texts or row ids
SMALL_TABLE = 20  # rows; in such a small table, each row may have its own class
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, eq=False)
class KeyColumn:
    """A column of labels, groups or sites: its distinct values, and the index of each row's value, (n,) int64."""

    data_set: str
    name: str
    train_rows: int
    values: list[Any]
    codes: np.ndarray

    @classmethod
    def of(cls, data_set: str, name: str, parts: Sequence[pyarrow.ChunkedArray], train_rows: int) -> KeyColumn:
        """Join the parts of a column, which may have different types."""
        import pyarrow

        values: list[Any] = []
        codes = [np.empty(0, np.int64)]
        for part in parts:
            for chunk in part.chunks:
                if pyarrow.types.is_null(chunk.type):
                    chunk = chunk.cast(pyarrow.string())
                try:
                    encoded = chunk.dictionary_encode(null_encoding="encode")
                except pyarrow.ArrowNotImplementedError:
                    raise DataError(
                        f"column {name!r} of {data_set!r} holds {part.type}: write whole numbers or strings."
                    ) from None
                codes.append(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) + len(values))
                values += map(to_python, encoded.dictionary)
        return cls(data_set, name, train_rows, values, np.concatenate(codes))

    @cached_property
    def word_by_value(self) -> list[str | None]:
        """The distinct values as words."""
        return [word_of(value) for value in self.values]

    @cached_property
    def words(self) -> set[str]:
        """The distinct words."""
        return {word for word in self.word_by_value if word is not None}

    def number(self, number_of: Callable[[Any], int | None]) -> np.ndarray:
        """The number of each row's value, (n,) int64, -1 if it has none."""
        numbers = np.full(len(self.values), -1, np.int64)
        for index, value in enumerate(self.values):
            number = number_of(value)
            if number is not None:
                numbers[index] = number
        return numbers[self.codes]

    def refuse(self, numbers: np.ndarray, what: str, num_classes: int = 0) -> None:
        """Refuse the first row without a number, as a "label" of `num_classes`, a "group" or a "site"."""
        rows = np.flatnonzero(numbers < 0)
        if not rows.size:
            return
        place = place_of(self.data_set, int(rows[0]), self.train_rows)
        value = self.values[self.codes[rows[0]]]
        error = LabelsError if what == "label" else DataError
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            raise error(f"{place} has no {what} in column {self.name!r}: give it one or drop the row.")
        word = word_of(value)
        if what == "label" and word in MISSING_NUMBERS:
            raise error(
                f"{place} has no label (it holds {value!r}): give it one or drop the row, or list the classes (in "
                "classes.txt, or as `classes` of arrays) if that is one."
            )
        if word is None:
            raise error(
                f"{place} has the {what} {value!r} in column {self.name!r}, but it must be a whole number or a string: "
                "write one of them."
            )
        text = word if _WHOLE_NUMBER.fullmatch(word) else repr(value)
        raise error(
            f"{place} has the {what} {text} in column {self.name!r}, but the classes are 0 to "
            f"{max(num_classes, 1) - 1} or their names: correct or drop the row, or list the class (in classes.txt, or "
            "as `classes` of arrays)."
        )


def read_keys(
    data_set: str,
    parts: dict[str, list[pyarrow.ChunkedArray]],
    label: str,
    columns: Columns,
    class_names: tuple[str, ...],
    train_rows: int,
    *,
    are_positions: bool = False,
    independent: bool = False,
) -> Samples:
    """The labels, groups and sites of all rows, as samples without inputs; -1 for a row without one.

    Args:
        parts: each column's pieces, those of the training rows first. label: the name of the labels' column.
        class_names: the known names, () for none. are_positions: whether stored numbers are class numbers, whatever
            the names are.
        independent: whether each row is judged by itself; then a bad row is not refused.
    """

    def read(column: str) -> KeyColumn:
        return KeyColumn.of(data_set, column, parts[column], train_rows)

    key = read(label)
    if not class_names and not independent and len(key.codes):
        class_names = _name_classes(key)
    labels = key.number(numbering(class_names, are_positions))
    if not independent:
        key.refuse(labels, "label", len(class_names))
    numbers: dict[str, np.ndarray] = {}
    site_names: tuple[str, ...] = ()
    for column in columns.extra:
        key = read(column)
        names, numbers[column] = _number_words(key)
        if not independent:
            key.refuse(numbers[column], "site" if column == columns.partition else "group")
        if column == columns.partition:
            site_names = names
    return Samples(
        data_set,
        np.empty((len(labels), 0), np.float32),
        labels,
        train_rows,
        class_names,
        groups=numbers.get(columns.group),
        sites=numbers.get(columns.partition),
        site_names=site_names,
    )


def _number_words(key: KeyColumn) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct groups or sites, stored numbers by value and strings alphabetically; and the position of each row's,
    (n,) int64, -1 if it has none."""
    are_numbers = not any(isinstance(value, str | bytes | bool) for value in key.values)
    names = sorted(key.words, key=int if are_numbers else None)
    position = {word: number for number, word in enumerate(names)}
    positions = [position.get(word or "", -1) for word in key.word_by_value]
    return tuple(names), np.array(positions, np.int64)[key.codes]


def numbering(class_names: Sequence[str], are_positions: bool = False) -> Callable[[Any], int | None]:
    """The function from a label to its class number; None for a value that is no class.

    A name takes precedence over a number. Numbers are class numbers, unless a class name is a whole number other than
    its position, as with grades (1, 2, 3): then numbers are names.

    Args:
        are_positions: whether stored numbers are class numbers, whatever the names are.
    """
    position = {word_of(name): label for label, name in reversed(list(enumerate(class_names)))}
    are_grades = False
    for word, label in position.items():
        if word and _WHOLE_NUMBER.fullmatch(word) and word != str(label):
            are_grades = True

    def number_of(value: Any) -> int | None:
        word = word_of(value)
        if isinstance(value, bool):
            # by name if a class has it, else the number 1 or 0
            word = next((name for name in (str(value), str(value).lower()) if name in position), str(int(value)))
        is_position = are_positions and not isinstance(value, str | bytes)
        if word is None:
            return None
        if word in position and not is_position:
            return position[word]
        if not _WHOLE_NUMBER.fullmatch(word) or (are_grades and not is_position):
            return None
        return int(word) if 0 <= int(word) < len(class_names) else None

    return number_of


def _name_classes(key: KeyColumn) -> tuple[str, ...]:
    """The classes of a column without a list of classes: its words except those for a missing value, sorted; or as many
    as its whole numbers need."""
    _refuse_target(key)
    names = sorted(key.words.difference(MISSING_NUMBERS))
    if not names or not all(map(is_number, names)):
        names = sorted(key.words.difference(MISSING))
    are_whole = all(map(_WHOLE_NUMBER.fullmatch, names))
    stored_numbers = [value for value in key.values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not are_whole and any(value == value for value in stored_numbers):
        raise LabelsError(
            f"column {key.name!r} of {key.data_set!r} holds names and numbers, or numbers above 18 digits: write all "
            "labels alike, or list the classes in classes.txt."
        )
    count = max(map(int, names)) + 1 if names and are_whole else len(names)
    if count > MOST_CLASSES:
        raise LabelsError(
            f"column {key.name!r} of {key.data_set!r} would make {count} classes, more than {MOST_CLASSES}: set "
            "label-column to the one with the classes, or list the classes in classes.txt."
        )
    return tuple(map(str, range(count))) if are_whole else tuple(names)


def _refuse_target(key: KeyColumn) -> None:
    """Refuse the target of a regression: stored fractions, or written decimals that are nearly all different."""
    has_fractions = False
    for value in key.values:
        if isinstance(value, float) and np.isfinite(value) and value % 1:
            has_fractions = True
    rows = len(key.codes)
    is_written = rows > SMALL_TABLE and len(key.words) > rows / 2 and all(map(is_number, key.words))
    if has_fractions or (is_written and not all(map(_WHOLE_NUMBER.fullmatch, key.words))):
        raise LabelsError(
            f"column {key.name!r} of {key.data_set!r} holds decimals, but a label is a class: put the numbers into a "
            "few bins, as pandas.cut does, or set label-column to the column with the classes."
        )
