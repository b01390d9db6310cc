"""Tables in a terminal: as wide as it is, and unbroken where they go elsewhere."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNBROKEN = 1_000  # characters: more than a table of ours needs


def console() -> Console:
    """For tables. In a pipe or a file each row stays on one line, for `grep` and `awk`, unless COLUMNS is set; rich
    alone takes 80 characters there and breaks names."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=None if has_width else UNBROKEN)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a table.

    Args:
        left: how many columns are words, which a narrow terminal folds. The others are numbers, to the right.
    """
    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(head):
        # Text: a name is no markup
        if place < left:
            table.add_column(Text(name), overflow="fold")
        else:
            table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)
