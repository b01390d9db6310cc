"""Torch's SGD, equal to the bit, without loading `torch.compile` and without a step's overhead; and conversion of an
optimiser's state to and from named tensors.

Torch imports its compiler (900 modules, about two seconds) when an optimiser is created, only to exclude the optimiser
from compilation. A deployment starts a process per message, so every client would pay for that in every round."""

from collections.abc import Callable, Iterable, Mapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn


class EagerSGD(torch.optim.SGD):
    """The optimiser of local training; it must not be compiled.

    `step` and `zero_grad` do what torch's do on the CPU, in the same order, without profiler records and hooks: a small
    model's step takes a tenth less time. The other methods are torch's, without the decorators that import the
    compiler.

    A group may have `bounds`, two numbers: its parameters are projected onto that interval after each step.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ):
        # a differentiable update would need the decorators
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def _patch_step_function(self) -> None:
        """Torch would wrap `step` here for its profiler and hooks."""

    @torch.no_grad()
    # torch's has overloads, which return the closure's loss
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all p that have a gradient g: v <- m v + g + w p (at first g + w p), p <- p - lr v.

        Args:
            closure: as for torch's; clients have none.
        """
        assert closure is None
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            changes = [parameter.grad for parameter in moved]
            if not moved:
                continue
            if group["weight_decay"]:
                changes = list(torch._foreach_add(changes, moved, alpha=group["weight_decay"]))
            if group["momentum"]:
                changes = self._carry(moved, changes, group["momentum"])
            torch._foreach_add_(moved, changes, alpha=-group["lr"])
            project(moved, group.get("bounds"))

    def _carry(self, moved: list[Tensor], changes: list[Tensor], momentum: float) -> list[Tensor]:
        """Update the stored momentum v, and return it."""
        states = [self.state[parameter] for parameter in moved]
        old = [place for place, state in enumerate(states) if "momentum_buffer" in state]
        if old:
            buffers = [states[place]["momentum_buffer"] for place in old]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, [changes[place] for place in old])
        for place in set(range(len(moved))).difference(old):
            states[place]["momentum_buffer"] = changes[place].clone()
        return [state["momentum_buffer"] for state in states]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Args:
            set_to_none: as for torch's; clients always use True.
        """
        assert set_to_none
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    add_param_group = unwrap(torch.optim.SGD.add_param_group)
    state_dict = unwrap(torch.optim.SGD.state_dict)
    load_state_dict = unwrap(torch.optim.SGD.load_state_dict)


@torch.no_grad()
def project(tensors: Iterable[Tensor], bounds: tuple[float, float] | None) -> None:
    """Clamp tensors to an interval, in place; without bounds, do nothing."""
    if bounds is None:
        return
    for tensor in tensors:
        tensor.clamp_(*bounds)


def optimiser_tensors(optimiser: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """`prefix/<parameter's place>/<name>` -> tensor."""
    return {
        f"{prefix}/{index}/{key}": value
        for index, values in optimiser.state_dict()["state"].items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Inverse of `optimiser_tensors`; names with another prefix are ignored."""
    state_by_index: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        whose, _, tail = name.partition("/")
        if whose == prefix:
            index, _, key = tail.partition("/")
            # the optimiser keeps and modifies the tensors that it is given
            state_by_index.setdefault(int(index), {})[key] = tensor.clone()
    if state_by_index:
        optimiser.load_state_dict(optimiser.state_dict() | {"state": state_by_index})
