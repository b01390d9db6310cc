"""The packages outside this one: five top-level folders in a checkout, and so in what Flower bundles; a wheel contains
them inside.

Flower imports both apps in threads of one process. A thread that imports while another still runs `__init__.py` finds
the package without them, so every module that may be imported first calls `add_rooms`.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def add_rooms() -> None:
    """Let `import protosphere.models` find the folder at the root of the checkout."""
    # append in place: the import system keeps a reference to this list
    path = sys.modules["protosphere"].__path__
    root = os.path.dirname(_HERE)
    if root not in path and not os.path.isdir(os.path.join(_HERE, "strategies")):
        path.append(root)
