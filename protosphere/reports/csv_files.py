"""A plot's numbers as CSV."""

import csv
import io
from collections.abc import Sequence

from protosphere.core.text import one_line

FORMULA = ("=", "+", "-", "@")  # first characters of a cell that a spreadsheet would evaluate as a formula


def as_csv(rows: Sequence[Sequence[object]]) -> str:
    """A CSV text: UTF-8, commas, one row per line, headers first; None is an empty cell.

    Clients and comparison files choose names, so names that a spreadsheet would evaluate as a formula are escaped.
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text
