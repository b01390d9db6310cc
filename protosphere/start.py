"""The command `protosphere`, and the import of that name, from wherever they are used: our packages go before folders
of the same names.

Somebody's own project may hold `data/`, `models/` or `cli/`, and stand on PYTHONPATH.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
# those that the API imports, from the bottom up
ROOMS = (
    *("prototypes", "models", "data", "federation", "runs", "strategies", "reports", "client_app", "server_app"),
    *("serving", "experiments", "cli"),
)


def main() -> None:
    """Run the command line."""
    sys.path[:] = [ROOT, *(place for place in sys.path if place != ROOT)]
    from cli.main import app

    app()


@contextmanager
def ours_first() -> Iterator[None]:
    """While inside, Python looks for modules here before it looks anywhere else; so do processes that are started."""
    before = list(sys.path)
    sys.path[:] = [ROOT, *(place for place in before if place != ROOT)]
    try:
        yield
    finally:
        # what was added inside stays
        sys.path[:] = [*before, *(place for place in sys.path if place not in before and place != ROOT)]


def refuse_strangers() -> None:
    """Refuse to work with somebody else's packages of our names.

    Raises:
        ImportError: one is loaded.
    """
    for name in ROOMS:
        module = sys.modules.get(name)
        places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
        if module is not None and not any(place.startswith(ROOT) for place in places):
            raise ImportError(
                f"a module `{name}` of another place ({places[0]}) is loaded already, and Protosphere has a package of "
                "that name: use protosphere before you import yours, or give yours another name."
            )
