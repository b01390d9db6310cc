"""Protosphere: prototype-based federated learning on Flower.

    import protosphere

    run = protosphere.run("protonorm", "digits", clients=10, rounds=20)
    run.rounds["accuracy"].plot()

The names in `__all__` are public and stable; docs/api.md describes them. A name's module is loaded on first use, so the
import itself is fast.
"""

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from protosphere.rooms import add_rooms

add_rooms()

if TYPE_CHECKING:
    from protosphere.clients import Client as Client
    from protosphere.clients import Predictions as Predictions
    from protosphere.comparing import Comparison as Comparison
    from protosphere.comparing import compare as compare
    from protosphere.errors import DataError as DataError
    from protosphere.errors import Error as Error
    from protosphere.errors import ModelError as ModelError
    from protosphere.errors import RosterError as RosterError
    from protosphere.errors import RunError as RunError
    from protosphere.errors import SettingError as SettingError
    from protosphere.errors import StoreError as StoreError
    from protosphere.reports.canvas import Plot as Plot
    from protosphere.results import Prototypes as Prototypes
    from protosphere.results import Report as Report
    from protosphere.results import Run as Run
    from protosphere.results import load as load
    from protosphere.running import run as run

# in the order of docs/api.md
PLACES = {
    "protosphere.running": ("run",),
    "protosphere.results": ("load", "Run", "Prototypes", "Report"),
    "protosphere.reports.canvas": ("Plot",),
    "protosphere.clients": ("Client", "Predictions"),
    "protosphere.comparing": ("compare", "Comparison"),
    "protosphere.errors": (
        *("Error", "SettingError", "DataError", "ModelError", "RosterError", "RunError", "StoreError"),
    ),
}

__all__ = sorted(name for names in PLACES.values() for name in names)


def __getattr__(name: str) -> Any:
    for place, names in PLACES.items():
        if name in names:
            with warnings.catch_warnings():
                if "ipykernel" in sys.modules:
                    # it warns in a notebook without ipywidgets, which we do not need
                    warnings.filterwarnings("ignore", message="IProgress not found")
                    import_module("tqdm.auto")
                value = getattr(import_module(place), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'protosphere' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
