"""The ClientApp: one training loop, one evaluation, one store for all methods."""
