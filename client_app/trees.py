"""The tensors in a value of dataclasses, mappings and tuples, and the same value with others in their place."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in it, in the order of `filled`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from tensors_in(getattr(value, entry.name))


def filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with other tensors; unchecked, since the values of stacked ones cannot be looked at."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return MappingProxyType({name: filled(each, tensors) for name, each in value.items()})
    if isinstance(value, tuple):
        return tuple(filled(each, tensors) for each in value)
    if not is_dataclass(value):
        return value
    made = copy(value)
    for entry in fields(value):
        object.__setattr__(made, entry.name, filled(getattr(value, entry.name), tensors))
    return made
