"""Single cells of a table: which are missing, which are numbers, and what a label or a group is called."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from typing import Any

import numpy as np

# words for a missing value; the second group only among numbers
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
MISSING_NUMBERS = (
    *MISSING,
    *("NULL", "Null", "None", "none", "NAN", "na", "n/a", "N.A.", "n.a.", "#N/A", "#NA", "<NA>", "-", "--", "."),
)
_LARGEST = 2**63


def is_number(word: str) -> bool:
    """Whether a word is a number; infinity counts."""
    try:
        return not np.isnan(float(word))
    except ValueError:
        return False


def is_missing(value: Any, words: Container[str] = MISSING) -> bool:
    """Whether a cell has no value: None, NaN or one of the words for that."""
    return value is None or value != value or (isinstance(value, str) and value.strip() in words)


def place_of(data_set: str, row: int, train_rows: int) -> str:
    """A phrase for a row of a data set whose training samples come first."""
    if row < train_rows:
        return f"row {row} of the train table of {data_set!r}"
    return f"row {row - train_rows} of the test table of {data_set!r}"


def to_python(cell: Any) -> Any:
    """The value of an Arrow scalar; None if it is missing, or Python cannot hold it: not UTF-8, or a far date."""
    try:
        return cell.as_py()
    except (UnicodeDecodeError, OverflowError, ValueError):
        return None


def word_of(value: Any) -> str | None:
    """A label, group or site as a word without surrounding blanks, 7.0 as 7, a boolean as True or False; None if it is
    none of these, nor a string."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST:
        # one missing value turns all numbers of a column into floats
        value = int(value)
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return None
    word = unicodedata.normalize("NFC", value).strip()
    if "." in word:
        word = re.sub(r"^(-?[0-9]+)\.0+$", r"\1", word)
    return word or None
