"""How much tests train: what most of them are about is seen in few steps."""

ONE_EPOCH = {"local-epochs": 1, "momentum": 0.0}
