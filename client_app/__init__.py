"""The ClientApp: one training loop, one evaluation, one store for all methods."""

from protosphere.core.startup import uncollected

if __name__ == "client_app":
    raise ImportError(
        "this is protosphere.client_app: import it by that name; a client_app/ of your own needs an __init__.py"
    )

with uncollected():
    import torch as torch
