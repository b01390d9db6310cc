"""Tables for a terminal: they fit its width, and are not wrapped in pipes and files."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNBROKEN = 1_000  # characters: more than any table needs


def console() -> Console:
    """A console for tables. In a pipe or a file, each row stays on one line for `grep` and `awk`, unless COLUMNS is
    set; rich's default of 80 characters would cut names."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=None if has_width else UNBROKEN)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a table.

    Args:
        left: the number of text columns, which wrap on a narrow terminal. The others are numbers, aligned right.
    """
    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(head):
        # Text, so that names are not parsed as markup
        if place < left:
            table.add_column(Text(name), overflow="fold")
        else:
            table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)
