"""The ClientApp, as pyproject.toml names it to Flower.

Flower looks for both apps in threads of one process. A thread that comes while another still runs the package itself
finds one without the rooms beside it: so this module lies in the package, and makes sure of them first.
"""

import os

import protosphere

_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "strategies")) and os.path.dirname(_HERE) not in protosphere.__path__:
    protosphere.__path__.append(os.path.dirname(_HERE))

from protosphere.client_app import app as module  # noqa: E402

app = module.app
