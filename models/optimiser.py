"""Torch's SGD, to the bit, without loading `torch.compile`, and without what a step costs beside the update; and an
optimiser's state as named tensors and back.

Torch imports its compiler (900 modules, some two seconds) as soon as an optimiser is made, only to keep the compiler
away from it. A deployment starts a process a message, so every client would pay that in every round."""

from collections.abc import Callable, Iterable, Mapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn


class EagerSGD(torch.optim.SGD):
    """What a client trains with; not to be compiled.

    `step` and `zero_grad` do what torch's do on the CPU, in its order, without records for a profiler and hooks that
    nobody sets: a small model's step takes a tenth less. The other methods are torch's own from below the decorators
    that import the compiler.

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
        """Torch would wrap `step` here for its profiler and its hooks."""

    @torch.no_grad()
    # torch's has overloads, which give a closure's loss
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all p that have a gradient g: v <- m v + g + w p (at first g + w p), p <- p - lr v.

        Args:
            closure: as torch's, which no client has.
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
        """The new v, kept."""
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
        """Forget the gradients.

        Args:
            set_to_none: as torch's, whose other way no client takes.
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
    """Bring tensors into an interval, in place; without one nothing changes."""
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
