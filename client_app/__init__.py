"""The ClientApp: one training loop, one evaluation, one store for all methods."""

from federation.startup import uncollected

with uncollected():
    import torch as torch
