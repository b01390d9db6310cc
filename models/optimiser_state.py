"""An optimiser's state as named tensors and back, for checkpoints and stores."""

from collections.abc import Mapping

import torch
from torch import Tensor


def optimiser_tensors(optimiser: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """`prefix/<parameter's place>/<name>` -> tensor."""
    return {
        f"{prefix}/{index}/{key}": value
        for index, values in optimiser.state_dict()["state"].items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Put back what `optimiser_tensors` gave; names of another prefix are passed over."""
    state_by_index: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        whose, _, tail = name.partition("/")
        if whose == prefix:
            index, _, key = tail.partition("/")
            # the optimiser takes tensors over and writes into them
            state_by_index.setdefault(int(index), {})[key] = tensor.clone()
    if state_by_index:
        optimiser.load_state_dict(optimiser.state_dict() | {"state": state_by_index})
