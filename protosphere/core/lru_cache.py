"""A cache of recently used values with the sum of their sizes."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Recent(MutableMapping[tuple[Any, ...], V], Generic[V]):
    """Values from the least to the most recently used; `size` returns a value's size in bytes."""

    def __init__(self, size: Callable[[V], int]) -> None:
        self.total = 0  # the sum of the sizes
        self._size = size
        self._entries: OrderedDict[tuple[Any, ...], tuple[V, int]] = OrderedDict()

    def __getitem__(self, key: tuple[Any, ...]) -> V:
        return self._entries[key][0]

    def __setitem__(self, key: tuple[Any, ...], value: V) -> None:
        self.pop(key, None)
        self._entries[key] = value, self._size(value)
        self.total += self._entries[key][1]

    def __delitem__(self, key: tuple[Any, ...]) -> None:
        self.total -= self._entries.pop(key)[1]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def use(self, key: tuple[Any, ...]) -> V | None:
        """The value, which becomes the most recently used; None if it is not cached."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def shrink(self, most: int) -> None:
        """Drop the least recently used values until the sizes sum to at most `most`, or one value is left."""
        while len(self) > 1 and self.total > most:
            del self[next(iter(self))]
