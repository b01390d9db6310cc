"""Cells of a table, of whatever type they are, as numbers and as words."""

from __future__ import annotations

from typing import Any

import numpy as np

# how a CSV file writes a missing value
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
TRUTHS = ("false", "true")


def as_numbers(cells: Any, truths: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Values (n,) float64, NaN for what is missing and infinity for what is no number; and which are missing. With
    `truths` the words true and false are 1 and 0, as the column has them where it is no strings."""
    import pyarrow
    import pyarrow.compute as pc

    if pyarrow.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if not pyarrow.types.is_string(cells.type) and not pyarrow.types.is_large_string(cells.type):
        values = cells.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
        return values, np.isnan(values)
    texts, missing = as_words(cells)
    try:
        values = texts.cast(pyarrow.float64()).to_numpy().astype(np.float64)
    except pyarrow.ArrowInvalid:
        values = np.array([_number(word, truths) for word in texts.to_pylist()])
    # the word itself is no number, either
    values = np.where(np.isnan(values) & ~missing, np.inf, values)
    return values, missing if len(values) else np.asarray(pc.is_null(texts).to_numpy())


def is_number(word: str) -> bool:
    """Whether a word is one, infinity too."""
    try:
        return not np.isnan(float(word))
    except ValueError:
        return False


def _number(word: str | None, truths: bool) -> float:
    if truths and word is not None and word.lower() in TRUTHS:
        return float(TRUTHS.index(word.lower()))
    try:
        return np.nan if word is None else float(word)
    except ValueError:
        return np.inf


def as_words(cells: Any) -> tuple[Any, np.ndarray]:
    """Cells as strings without spaces around them, null for what is missing; and which are missing."""
    import pyarrow
    import pyarrow.compute as pc

    texts = cells.cast(pyarrow.string())
    texts = pc.utf8_trim_whitespace(texts)
    missing = pc.is_in(texts, value_set=pyarrow.array([*MISSING, None], pyarrow.string()))
    return pc.if_else(missing, pyarrow.scalar(None, pyarrow.string()), texts), np.asarray(missing.to_numpy())
