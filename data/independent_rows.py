"""Rows that are judged each by itself, for a site that keeps the presence of a row private: one that cannot be used is
left out, and decides on nothing else: no refusal, no class, no number of channels.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.files import LARGEST_ROW, refuse_irregular

if TYPE_CHECKING:
    import datasets

# Pillow's modes of more than 8 bits a channel
TOO_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def usable(
    table: datasets.Dataset, role_by_column: Mapping[str, str], kind: str, class_names: tuple[str, ...]
) -> datasets.Dataset:
    """The rows of a table that have a class of the list, a group where groups are asked for, and an input that can be
    read; with class numbers in the label's column.

    Args:
        role_by_column: column -> `inputs`, `label` or `group`.
        kind: "image" or "text".
    """
    of = {role: column for column, role in role_by_column.items()}
    labels = [_label(value, class_names) for value in _values(table, of["label"])]
    groups = (
        [value not in (None, "") for value in _values(table, of["group"])] if "group" in of else [True] * len(table)
    )
    read = _image if kind == "image" else _text
    inputs = _values(table, of["inputs"])
    chosen = [
        row
        for row, (label, grouped, value) in enumerate(zip(labels, groups, inputs, strict=True))
        if label is not None and grouped and read(value)
    ]
    subset = table.select(chosen).remove_columns(of["label"])
    return subset.add_column(of["label"], np.array([labels[row] for row in chosen], dtype=np.int64))


def _values(table: datasets.Dataset, column: str) -> list[Any]:
    """One by one, None for what is missing or no UTF-8."""
    values = []
    for value in table.select_columns([column]).with_format("arrow")[:].column(column) if len(table) else ():
        try:
            cell = value.as_py()
        except UnicodeDecodeError:
            cell = None
        values.append(cell.strip() if isinstance(cell, str) else cell)
    return values


def _label(value: Any, class_names: tuple[str, ...]) -> int | None:
    """A class's name, or its number where no class has a number's name."""
    if isinstance(value, str):
        if value in class_names:
            return class_names.index(value)
        if not _NUMBER.fullmatch(value) or any(map(_NUMBER.fullmatch, class_names)):
            return None
        value = int(value)
    return value if type(value) is int and 0 <= value < len(class_names) else None


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _image(value: Any) -> bool:
    from PIL import Image

    try:
        content = value["bytes"]
        if content is None:
            refuse_irregular(Path(value["path"] or ""), LARGEST_ROW)
            content = Path(value["path"] or "").read_bytes()
        image = Image.open(io.BytesIO(content))
        image.convert("RGB")
    except Exception:
        # Pillow raises a dozen kinds
        return False
    return image.mode not in TOO_DEEP
