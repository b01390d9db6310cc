"""The ServerApp."""

from protosphere.core.startup import uncollected

if __name__ == "server_app":
    raise ImportError(
        "this is protosphere.server_app: import it by that name; a server_app/ of your own needs an __init__.py"
    )

with uncollected():
    import torch as torch
