"""Names for a user's objects, such as models or a method, so that they are loaded like plug-ins; the rest of the
program sees only names."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from protosphere.core import objects
from protosphere.core.errors import SettingError
from protosphere.strategies import load_method
from protosphere.strategies.contract import Method, Objective, PullObjective, ServerHalf

Model = Callable[..., Any]


def with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with objects replaced by names."""
    named = dict(settings)
    for setting, name_of in {"strategy": _name_method, "models": _name_models}.items():
        value = named.get(setting)
        if value is not None and not isinstance(value, str):
            named[setting] = name_of(value)
    return named


def _name_models(value: Any) -> str:
    """The setting `models` for a model, or for a list of models and names."""
    names = []
    for model in value if isinstance(value, list | tuple) else [value]:
        if isinstance(model, nn.Module):
            # every client gets a copy of it with its weights
            names.append(objects.keep(partial(copy.deepcopy, copy.deepcopy(model).cpu()), type(model).__name__))
        elif callable(model):
            function = model.func if isinstance(model, partial) else model
            label = getattr(function, "__name__", type(function).__name__)
            names.append(objects.keep(model, label if label.isidentifier() else "own"))
        elif isinstance(model, str):
            names.append(model)
        else:
            raise SettingError(
                f"setting `models` has an object of type {type(model).__name__}, but a model is a name, a class, a "
                "function that makes one, or a torch module."
            )
    return ",".join(names)


def _name_method(value: Any) -> str:
    """The name of a method. If only one half is given, the other one is FedProto's."""
    method = value
    if isinstance(value, type) and issubclass(value, ServerHalf):
        method = Method(server=value, objective=PullObjective)
    elif isinstance(value, type) and issubclass(value, Objective):
        # a client half that sends nothing trains alone
        other = "local" if value.upload is Objective.upload else "fedproto"
        method = replace(load_method(other), objective=value)
    if not isinstance(method, Method):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"
        raise SettingError(
            f"setting `strategy` is {what}, but a method is a name, a Method(server=..., objective=...), or a subclass "
            "of ServerHalf or Objective; docs/adding-a-method.md shows each."
        )
    halves = (method.server, method.objective)
    user_half = next((half for half in halves if not half.__module__.startswith("protosphere.")), method.objective)
    return objects.keep(method, user_half.__name__)
