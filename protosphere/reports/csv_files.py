"""A picture's numbers as a CSV file, for a reader's own plot."""

import csv
import io
from collections.abc import Sequence

from protosphere.core.text import one_line

FORMULA = ("=", "+", "-", "@")  # what a spreadsheet computes where a cell begins with it


def as_csv(rows: Sequence[Sequence[object]]) -> str:
    """A file's text: UTF-8, commas, a line a row, the first the heads. None is an empty cell.

    Names are a client's words, or a comparison's: none is left that a spreadsheet would take for a formula.
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text
