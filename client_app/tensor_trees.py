"""The tensors in a value of dataclasses, mappings and tuples, and the same value with others in their place."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

PLAIN = (str, int, float, bool, type(None))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in it, in the order of `filled`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple):
        for item in _items(value):
            yield from tensors_in(item)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from tensors_in(getattr(value, entry.name))


def structure(value: Any) -> Any:
    """All of it but the tensors: equal where `filled` may put one's tensors in another's place."""
    if isinstance(value, Tensor):
        return Tensor
    if isinstance(value, Mapping):
        return tuple(sorted(value)), tuple(map(structure, _items(value)))
    if isinstance(value, tuple):
        return tuple(map(structure, value))
    if is_dataclass(value):
        return type(value), tuple(structure(getattr(value, entry.name)) for entry in fields(value))
    # what else it may be nobody knows, and so no other is equal to it
    return value if isinstance(value, PLAIN) else object()


def _items(value: Mapping[str, Any] | tuple[Any, ...]) -> Iterator[Any]:
    # by name: a state that comes from the store has another order than one that does not
    yield from (value[name] for name in sorted(value)) if isinstance(value, Mapping) else value


def filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with other tensors; unchecked, since the values of stacked ones cannot be looked at."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return MappingProxyType({name: filled(value[name], tensors) for name in sorted(value)})
    if isinstance(value, tuple):
        return tuple(filled(item, tensors) for item in value)
    if not is_dataclass(value):
        return value
    filled_copy = copy(value)
    for entry in fields(value):
        object.__setattr__(filled_copy, entry.name, filled(getattr(value, entry.name), tensors))
    return filled_copy
