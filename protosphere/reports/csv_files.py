"""A frame as CSV."""

import csv
import io

import pandas as pd

from protosphere.core.text import one_line

FORMULA = ("=", "+", "-", "@")  # first characters of a cell that a spreadsheet would evaluate as a formula


def as_csv(table: pd.DataFrame) -> str:
    """A CSV text: UTF-8, commas, one row per line, headers first; a missing value is an empty cell.

    Clients and comparison files choose names, so names that a spreadsheet would evaluate as a formula are escaped.
    """
    cells = table.astype(object).where(table.notna(), None)
    rows = [list(table.columns), *cells.itertuples(index=False, name=None)]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text
