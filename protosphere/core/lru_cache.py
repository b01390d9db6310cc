"""Values that a process used last, with the sum of their sizes."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Recent(MutableMapping[tuple[Any, ...], V], Generic[V]):
    """From the one used longest ago to the newest.

    Attributes:
        total: the sum of the sizes, which is not counted again with each value.

    Args:
        size: of a value, in bytes.
    """

    def __init__(self, size: Callable[[V], int]) -> None:
        self.total = 0
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

    def use(self, key: tuple[Any, ...]) -> V | None:
        """The value, which is the newest from now on; None where it is not kept."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shrink(self, most: int, least: int = 0) -> None:
        """Drop the oldest until the sizes add up to `most` at most, or `least` values are left."""
        while len(self) > least and self.total > most:
            self.popitem()
