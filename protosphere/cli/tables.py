"""How wide a table is: as a terminal, and as itself where it goes elsewhere."""

import os
import sys

from rich.console import Console

UNBROKEN = 1_000  # characters: more than a table of ours needs


def console() -> Console:
    """For tables. In a pipe or a file each row stays on one line, for `grep` and `awk`, unless COLUMNS is set; rich
    alone takes 80 characters there and breaks names."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=None if has_width else UNBROKEN)
