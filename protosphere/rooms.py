"""The rooms that lie beside this package: five in a checkout, and so in what Flower bundles; a wheel holds them inside.

Flower looks for both apps in threads of one process. A thread that comes while another still runs `__init__.py` finds
the package without them: so whoever may be first asks for them here.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def add_rooms() -> None:
    """Have `import protosphere.models` find the room at the root of the checkout."""
    # appended in place: the import system keeps this very list
    path = sys.modules["protosphere"].__path__
    root = os.path.dirname(_HERE)
    if root not in path and not os.path.isdir(os.path.join(_HERE, "strategies")):
        path.append(root)
