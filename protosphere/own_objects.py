"""What a user gives as an object and not by name: models, a method, a partition. Here it gets a name, by which it is
loaded wherever that of a plug-in is; nothing behind this border knows of the difference."""

import copy
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from protosphere.core import objects
from protosphere.core.errors import SettingError
from protosphere.strategies import load_method
from protosphere.strategies.contract import Method, Objective, PullObjective, ServerHalf

Model = Callable[..., Any]
LIBRARIES = ("protosphere", "torch", "builtins", "abc", "typing")
# of a class, what is no part of what it does; `__slotnames__` comes when one of its objects is copied, an empty
# `__annotations__` when it is asked for them
OF_PYTHON = {
    "__annotations__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",
}
OF_MODULES = vars(nn.Module()).keys()  # what every module has: how it is kept, and whether it trains
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
CACHED = type(functools.lru_cache(len))  # a function that keeps its results
# what Python may share among places where it is equal, and so in one process and not in another
VALUES = (str, bytes, int, float, complex, type(None), tuple, frozenset, torch.Tensor, np.ndarray)


class _Copies:
    """Gives every client a copy of a network as it was given, weights and all."""

    def __init__(self, module: nn.Module):
        self._module = copy.deepcopy(module).cpu()

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self._module)


def with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with names in the places of objects.

    Raises:
        SettingError: an object that is no model, method or partition.
    """
    named = dict(settings)
    for setting, name_of in {"strategy": _name_method, "partition": _name_callable, "models": _name_models}.items():
        value = named.get(setting)
        if value is not None and not isinstance(value, str):
            named[setting] = name_of(value)
    return named


def _name_models(value: Any) -> str:
    """The setting `models` of a model, or of a list of models and names."""
    models = value if isinstance(value, list | tuple) else [value]
    return ",".join(map(_name_model, models))


def _name_model(model: Any) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return objects.keep(_Copies(model), type(model).__name__, _digest(model))
    if callable(model):
        return _name_callable(model)
    raise SettingError(
        f"setting `models` has an object of type {type(model).__name__}, but a model is a name, a class, a function "
        "that makes one, or a torch module."
    )


def _name_callable(value: Any) -> str:
    if not callable(value):
        raise SettingError(f"an object of type {type(value).__name__} is given for a setting, but it cannot be called.")
    return _importable(value, getattr(value, "__name__", "")) or objects.keep(value, _label(value), _digest(value))


def _name_method(value: Any) -> str:
    """A method, or one half of a method: the other is then FedProto's."""
    method = value
    if isinstance(value, type) and issubclass(value, ServerHalf):
        method = Method(server=value, objective=PullObjective)
    elif isinstance(value, type) and issubclass(value, Objective):
        # one that sends nothing trains alone
        other = "local" if value.upload is Objective.upload else "fedproto"
        method = replace(load_method(other), objective=value)
    if not isinstance(method, Method):
        raise SettingError(
            f"setting `strategy` is {_type_words(value)}, but a method is a name, a Method(server=..., objective=...), "
            "or a subclass of ServerHalf or Objective; docs/adding-a-method.md shows each."
        )
    halves = (method.server, method.objective)
    if method is value:
        for half in halves:
            if place := _place_of(method, half.__module__):
                return place
    own = next((half for half in halves if not half.__module__.startswith("protosphere.")), method.objective)
    return objects.keep(method, own.__name__, _digest(method))


def _place_of(method: Method, module_name: str) -> str:
    """`package.module:NAME` of a method that stands in this module; else ""."""
    module = sys.modules.get(module_name)
    if module is not None:
        for name, other in vars(module).items():
            if other is method and (place := _importable(method, name, module_name)):
                return place
    return ""


def _type_words(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _importable(value: Any, name: str, module_name: str = "") -> str:
    """`package.module:NAME` where any process can import the object by that; else ""."""
    module_name = module_name or str(getattr(value, "__module__", ""))
    module = sys.modules.get(module_name)
    spec = getattr(module, "__spec__", None)
    if module_name == "__main__" or spec is None or not spec.has_location or not name.isidentifier():
        return ""
    return f"{module_name}:{name}" if getattr(module, name, None) is value else ""


def _label(value: Any) -> str:
    """What a person calls it, in letters that a name may have."""
    function = value.func if isinstance(value, functools.partial) else value
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "own"


def _digest(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=4)
    for part in _parts(value, {}):
        content = part if isinstance(part, bytes) else part.encode()
        # with its length: (1, 28) is not (128,)
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _parts(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[str | bytes]:
    """What an object is made of: weights, code, what that encloses, and what an object of one's own class holds.

    Args:
        seen: id -> its number and the object, which stays until the end: no other gets its id.
    """
    if not isinstance(value, VALUES):
        if id(value) in seen:
            yield f"again {seen[id(value)][0]}"
            return
        seen[id(value)] = len(seen), value
    if isinstance(value, torch.Tensor):
        if value.is_meta or is_lazy(value):
            # without numbers yet
            yield _words(value)
            return
        yield f"{value.dtype} {tuple(value.shape)}"
        if value.layout in SPARSE:
            entries = value.detach().to_sparse_coo().coalesce()
            yield from _parts((entries.indices(), entries.values()), seen)
            return
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape}"
        yield value.tobytes()
    elif isinstance(value, nn.Module):
        yield _words(value)
        yield from _parts(type(value), seen)
        for name, tensor in value.state_dict().items():
            yield name
            yield from _parts(tensor, seen)
        for name, module in value.named_modules():
            yield name
            if _holds_parts(type(module)):
                yield from _parts(type(module), seen)
            yield from _attributes(module, seen)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield f"{value.co_names} {value.co_varnames}"
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, FunctionType):
        yield from _parts(value.__code__, seen)
        yield from _parts(value.__defaults__, seen)
        yield from _parts(value.__kwdefaults__, seen)
        for cell in value.__closure__ or ():
            # one that nothing was put into yet
            with suppress(ValueError):
                yield from _parts(cell.cell_contents, seen)
    elif isinstance(value, MethodType):
        for part in (value.__func__, value.__self__):
            yield from _parts(part, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _parts(part, seen)
    elif isinstance(value, type):
        yield value.__qualname__
        if _is_own(value):
            for name, member in sorted(vars(value).items()):
                if name not in OF_PYTHON and not name.startswith("__pydantic"):
                    yield name
                    yield from _parts(getattr(member, "__func__", getattr(member, "fget", member)), seen)
            for base in value.__bases__:
                yield from _parts(base, seen)
    elif isinstance(value, Mapping):
        yield f"{len(value)} entries"
        for key, item in value.items():
            yield from _parts(key, seen)
            yield from _parts(item, seen)
    elif isinstance(value, list | tuple):
        yield f"{len(value)} items"
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, set | frozenset):
        # in an order that is not another in each process
        for item in sorted(value, key=_words):
            yield from _parts(item, seen)
    elif is_dataclass(value):
        yield from _parts(type(value), seen)
        for field in fields(value):
            # one that nothing was put into yet has none
            yield from _parts(getattr(value, field.name, None), seen)
        if _holds_parts(type(value)):
            yield from _attributes(value, seen)
    elif isinstance(value, functools.cached_property):
        yield from _parts(value.func, seen)
    elif isinstance(value, CACHED):
        yield from _parts(value.__wrapped__, seen)
    elif _holds_parts(type(value)) and (hasattr(value, "__dict__") or _slots(type(value))):
        yield from _parts(type(value), seen)
        yield from _attributes(value, seen)
    else:
        yield _words(value)


def _words(value: Any) -> str:
    """Without the place in memory, which another process has elsewhere."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in LIBRARIES


def _holds_parts(kind: type) -> bool:
    """Whether an object of this class is what it holds. One of a library, such as a logger, may lead to all that a
    process has, which another process has not; of such a one its own words will do."""
    name = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return _is_own(kind) and name not in sys.stdlib_module_names and "site-packages" not in Path(file).parts


def _attributes(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[str | bytes]:
    """What stands in an object, in its slots, too, but for what every module has."""
    held: dict[str, Any] = {}
    for name, slot in _slots(type(value)).items():
        # one that nothing was put into yet
        with suppress(AttributeError):
            held[name] = slot.__get__(value)
    for name, part in (held | getattr(value, "__dict__", {})).items():
        if not (isinstance(value, nn.Module) and name in OF_MODULES):
            yield name
            yield from _parts(part, seen)


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    """What objects of a class hold without a `__dict__`, by its name."""
    # of a name that a class and one below it have, attribute access gives the latter's
    members = [item for base in reversed(kind.__mro__) for item in vars(base).items()]
    return {name: member for name, member in members if isinstance(member, MemberDescriptorType)}
