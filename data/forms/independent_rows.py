"""Rows that are judged each by itself, for a site that keeps the presence of a row private: one that cannot be used is
left out, and decides on nothing else: no refusal, no class, no number of channels.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from protosphere.data.forms.labels import numbering, to_python


def usable(
    labels: Iterable[Any],
    groups: Iterable[Any] | None,
    inputs: Iterable[Any],
    is_readable: Callable[[Any], bool],
    class_names: tuple[str, ...],
    are_positions: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows have a class of the list, a group where groups are asked for, and an input that can be read.

    Args:
        labels, groups: Arrow's cells, a row each. inputs: values, None for what is missing.
        is_readable: whether an input can be read.
        are_positions: as in `read_labels`.

    Returns:
        The numbers of these rows and of their classes, both (m,) int64.
    """
    number_of = numbering(class_names, are_positions)
    numbers = [number_of(to_python(cell)) for cell in labels]
    has_group = [True] * len(numbers)
    if groups is not None:
        has_group = [_is_group(to_python(cell)) for cell in groups]
    rows = []
    for row, value in enumerate(inputs):
        if numbers[row] is not None and has_group[row] and is_readable(value):
            rows.append(row)
    return np.array(rows, dtype=np.int64), np.array([numbers[row] for row in rows], dtype=np.int64)


def _is_group(value: Any) -> bool:
    """Whether a value names a group: one missing value makes fractions of all whole numbers of a column."""
    if isinstance(value, str):
        return bool(value.strip())
    return value is not None and (type(value) is not float or (value.is_integer() and abs(value) < 2**63))
