"""A data set of somebody's own callable: a torch `Dataset` of (tensor, int), or two, for training and test."""

from typing import Any

import numpy as np

from protosphere.core.errors import DataError, public
from protosphere.data.arrays import Arrays, arranged
from protosphere.data.custom_partition import Code


def read_code(code: Code, class_names: tuple[str, ...] = ()) -> Arrays:
    """The rows that a callable gives: every item of a Dataset, read once in its order.

    Inputs are tensors or arrays of one shape, taken as `arranged` takes them; labels whole numbers. The names of
    classes are the first one's attribute `classes`, where it has one.

    Raises:
        DataError: it fails, or gives something else.
    """
    result = code()
    parts: list[Any] = list(result) if isinstance(result, tuple) else [result]
    if len(parts) not in (1, 2) or not all(hasattr(part, "__getitem__") and hasattr(part, "__len__") for part in parts):
        raise _make_error(code, f"gives a {type(result).__name__}, but not a Dataset or a pair of them")
    arrays: dict[str, Any] = {}
    for part, end in zip(parts, ("", "_test"), strict=False):
        rows = [_item(code, part, row) for row in range(len(part))]
        if len({(x.shape, x.dtype) for x, _ in rows}) > 1:
            raise _make_error(code, "gives items of several shapes or types")
        if not rows:
            raise _make_error(code, "gives a Dataset without items")
        arrays["x" + end] = np.stack([x for x, _ in rows])
        arrays["y" + end] = np.array([y for _, y in rows])
    names = class_names or tuple(str(name) for name in getattr(parts[0], "classes", ()))
    return arranged(code.name, arrays, names)


def _item(code: Code, part: Any, row: int) -> tuple[np.ndarray, int]:
    try:
        x, y = part[row]
        x = x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
        number = int(y)
        if number != y:
            raise ValueError(f"its label is {y}, no whole number")
        return x, number
    except Exception as error:
        raise _make_error(code, f"fails at item {row} ({type(error).__name__}: {error})") from error


def _make_error(code: Code, what: str) -> DataError:
    return DataError(
        f"the data set {code.name!r} {what}: let it return a torch Dataset of (tensor, int), or a pair of two.",
        public("user-code"),
    )
