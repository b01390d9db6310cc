"""What a method and a model see of a client while its cohort is one: what a stack cannot give is refused, not wrong."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from protosphere.strategies.contract import Phase


class UnstackableError(Exception):
    """Why clients cannot be trained in one step."""


class StateInStack:
    """What a loss reads of a state, while the clients of a stack are one."""

    def __init__(self, module: nn.Module, constants: Mapping[str, float], fields: Mapping[str, Any]):
        self.__dict__.update(fields, module=module, constants=constants)

    def __getattr__(self, name: str) -> Any:
        raise UnstackableError(f"its loss reads `{name}` of a client's state, which clients do not have in one shape")

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnstackableError(f"its loss changes `{name}` of a client's state")


class PhaseInStack:
    """What a loss reads of a phase: parameters and rows are one client's."""

    def __init__(self, phase: Phase):
        self.__dict__.update(name=phase.name, epochs=phase.epochs, fresh=phase.fresh, rate=phase.rate)

    def __getattr__(self, name: str) -> Any:
        raise UnstackableError(f"its loss reads `{name}` of a phase, which is one client's")


def plain_tensors(module: nn.Module) -> list[str]:
    """Names of a module's tensors that are neither parameters nor buffers."""
    return [name for name, value in vars(module).items() if isinstance(value, Tensor)]


def layers_named_again(module: nn.Module) -> list[str]:
    """Of the layers that lie in it under several names, those but the first: `functional_call` knows one."""
    layers: set[nn.Module] = set()
    repeated_names = []
    for name, layer in module.named_modules(remove_duplicate=False):
        if layer in layers and [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            repeated_names.append(name)
        layers.add(layer)
    return repeated_names


def generator_states() -> tuple[Any, ...]:
    """How far the process's generators are that vmap does not know."""
    numpy_state: Any = np.random.get_state(legacy=True)
    return random.getstate(), numpy_state[1].tobytes(), *numpy_state[2:]
