"""Layouts of weights as text: a client sends names and shapes once, so that rounds need no names."""

import math
import re
from collections.abc import Sequence

from protosphere.prototypes.weights import Layout
from protosphere.wire.checks import MessageError

MOST_LINES = 4096
MOST_VALUES = 2**28
LINE = re.compile(r"([^/]+)/(.+):((?:[1-9]\d*x)*[1-9]\d*)?", re.ASCII)  # part/name:3x4


def layout_lines(part: str, layout: Layout) -> list[str]:
    """A layout as text, one line per tensor: `head/classifier.weight:10x500`."""
    return [f"{part}/{name}:{'x'.join(map(str, shape))}" for name, shape in layout]


def read_layouts(lines: Sequence[str]) -> dict[str, Layout]:
    """Inverse of `layout_lines`, for all parts of a client. Raises MessageError."""
    if len(lines) > MOST_LINES:
        raise MessageError(f"the layout has {len(lines)} tensors, at most {MOST_LINES} are agreed")
    tensors_by_part: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for line in lines:
        match = LINE.fullmatch(line)
        if not match:
            raise MessageError(f"the layout's line {line!r} is no `part/name:shape`")
        part, name, sizes = match.groups()
        shape = tuple(map(int, sizes.split("x"))) if sizes else ()
        tensors_by_part.setdefault(part, []).append((name, shape))

    for part, tensors in tensors_by_part.items():
        names = [name for name, _ in tensors]
        if sorted(set(names)) != names:
            raise MessageError(f"the names of the layout of `{part}` are not unique and ascending")
        if sum(math.prod(shape) for _, shape in tensors) > MOST_VALUES:
            raise MessageError(f"the layout of `{part}` has more than {MOST_VALUES} values")
    return {part: tuple(tensors) for part, tensors in tensors_by_part.items()}
