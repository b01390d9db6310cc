"""The ServerApp."""

from federation.startup import uncollected

with uncollected():
    import torch as torch
