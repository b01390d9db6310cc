"""The command `protosphere`, from wherever it is typed: our packages go before folders of the same names.

Somebody's own project may hold `data/`, `models/` or `cli/`, and stand on PYTHONPATH.
"""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])


def main() -> None:
    """Run the command line."""
    sys.path[:] = [ROOT, *(place for place in sys.path if place != ROOT)]
    from cli.main import app

    app()
