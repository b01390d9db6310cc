"""Somebody's own code in a run's data: a callable that gives the rows, or one that deals them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protosphere.core import objects, plugins
from protosphere.core.errors import CodeError, DataError, ModelError
from protosphere.data.forms.arrays import arrange
from protosphere.data.samples import Samples

_DATASET = "data set", "a torch Dataset of (tensor, int), or a pair of two"
_PARTITION = "partition", "a list with an array of different sample numbers for each client"


@dataclass(frozen=True)
class OwnCode:
    """A callable, by `package.module:NAME`, `./file.py` or `./file.py:NAME`.

    Attributes:
        name: its name, of a file without the folder. place: as it is to be loaded. digest: of the file's content.
        usual: what a file's callable is called, where nothing else is said.
    """

    name: str
    place: str
    digest: str
    usual: str

    def __call__(self, *arguments: object) -> object:
        """What it returns.

        Raises:
            DataError: it cannot be loaded or called, or fails.
        """
        try:
            function = plugins.load(self.place, self.usual)
            if not callable(function):
                raise TypeError(f"it is of type {type(function).__name__}, which cannot be called")
            return function(*arguments)
        except DataError:
            raise
        except Exception as error:
            raise _make_error(self.name, error) from error


def own_code(name: str, usual: str) -> OwnCode | None:
    """The code that a setting names; None where it names none.

    Raises:
        DataError: its file cannot be read.
    """
    if not plugins.is_plugin(name):
        return None
    try:
        digest = plugins.digest(name) or _of_module(name)
    except (ModelError, ImportError, OSError, ValueError) as error:
        raise _make_error(plugins.placeless(name), error) from error
    return OwnCode(plugins.placeless(name), name, digest, usual)


def _of_module(name: str) -> str:
    # nothing is run for it: a report asks, too
    if objects.is_object(name):
        return ""
    files = plugins.files_of(name)
    if not files:
        raise ImportError(f"there is no module {plugins.parted(name)[0]}")
    return hashlib.blake2b(files[-1].read_bytes(), digest_size=8).hexdigest() if files[-1].is_file() else ""


def read_code(code: OwnCode, class_names: tuple[str, ...] = ()) -> Samples:
    """The rows that a callable gives: every item of a Dataset, read once in its order.

    Inputs are tensors or arrays of one shape, taken as `arrange` takes them; labels whole numbers. The names of
    classes are the first one's attribute `classes`, where it has one.

    Raises:
        DataError: it fails, or gives something else.
    """
    result = code()
    try:
        arrays = read_items(list(result) if isinstance(result, tuple) else [result])
    except DatasetError as error:
        raise _make_return_error(code, _DATASET, f"gives {error}") from error.__cause__
    names = class_names or tuple(arrays.pop("classes", np.array([])).tolist())
    return arrange(code.name, arrays, names)


def rows_of(datasets: Sequence[Any]) -> dict[str, np.ndarray]:
    """`read_items`, for datasets that somebody gives as objects.

    Raises:
        DataError: what is no Dataset, or an item that cannot be used.
    """
    try:
        return read_items(datasets)
    except DatasetError as error:
        raise CodeError(
            f"the setting `dataset` is given {error}: give {_DATASET[1]}; a transform of its own makes items of one "
            "shape, and the path of a folder is read a row at a time.",
        ) from error.__cause__


class DatasetError(ValueError):
    """What is wrong with a Dataset, in words that go on from "gives "."""


def read_items(datasets: Sequence[Any]) -> dict[str, np.ndarray]:
    """A Dataset, or one of training and one of test rows, read once in its order: `x`, `y`, perhaps `x_test`, `y_test`,
    and `classes` where the first has names of them."""
    if len(datasets) not in (1, 2):
        raise DatasetError(f"a tuple of {len(datasets)} things, but not a Dataset or a pair of them")
    for part in datasets:
        if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")):
            raise DatasetError(f"a {type(part).__name__}, but not a Dataset or a pair of them")
    arrays: dict[str, np.ndarray] = {}
    for part, end in zip(datasets, ("", "_test"), strict=False):
        rows = [_item(part, row) for row in range(len(part))]
        if len({(x.shape, x.dtype) for x, _ in rows}) > 1:
            raise DatasetError("items of several shapes or types")
        if not rows:
            raise DatasetError("a Dataset without items")
        arrays["x" + end] = np.stack([x for x, _ in rows])
        arrays["y" + end] = np.array([y for _, y in rows])
    # of a part of one, as `random_split` makes it
    if hasattr(datasets[0][0][0], "getbands"):
        # an image of PIL's has its channels last, however many they are
        arrays["axes"] = np.array("NHWC" if arrays["x"].ndim == 4 else "NHW")
    full_dataset: Any = datasets[0] if hasattr(datasets[0], "classes") else getattr(datasets[0], "dataset", None)
    if hasattr(full_dataset, "classes"):
        arrays["classes"] = np.array([str(name) for name in full_dataset.classes])
    return arrays


def _item(part: Any, row: int) -> tuple[np.ndarray, int]:
    try:
        x, y = part[row]
        if getattr(x, "mode", "") in ("P", "1"):
            # of an image with a palette the numbers are no colours
            x = x.convert("RGB" if x.mode == "P" else "L")
        x = x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
        number = int(y)
        if number != y:
            raise ValueError(f"its label is {y}, no whole number")
        return x, number
    except Exception as error:
        raise DatasetError(f"a Dataset that fails at item {row} ({type(error).__name__}: {error})") from error


def dealt_by_code(
    code: OwnCode, labels: np.ndarray, groups: np.ndarray | None, num_clients: int, seed: int
) -> list[np.ndarray]:
    """What somebody's own partition gives each client: sorted positions in `labels` (n,) int64.

    It is called with (labels, groups, clients, seed): copies, `groups` (n,) int64 or None. Rows that it leaves out are
    nobody's.

    Raises:
        DataError: it fails, or gives no list of as many arrays of whole numbers in 0..n−1, all different.
    """
    result = code(labels.copy(), None if groups is None else groups.copy(), num_clients, seed)
    try:
        parts = [np.asarray(part).reshape(-1) for part in _sequence(result)]
        parts = [part.astype(np.int64) if not part.size else part for part in parts]
    except (TypeError, ValueError) as error:
        raise _make_return_error(code, _PARTITION, f"gives what is no list of arrays ({error})") from None
    if len(parts) != num_clients:
        raise _make_return_error(code, _PARTITION, f"gives {len(parts)} arrays, but there are {num_clients} clients")
    for number, part in enumerate(parts):
        if part.dtype.kind not in "iu":
            raise _make_return_error(
                code, _PARTITION, f"gives client {number} {part.dtype}, but sample numbers are whole numbers"
            )
        if not part.size:
            raise _make_return_error(code, _PARTITION, f"gives client {number} no sample")
        if part.min() < 0 or part.max() >= len(labels):
            raise _make_return_error(
                code,
                _PARTITION,
                f"gives client {number} row {part.min() if part.min() < 0 else part.max()} of {len(labels)}",
            )
    rows, counts = np.unique(np.concatenate(parts), return_counts=True)
    if (counts > 1).any():
        raise _make_return_error(code, _PARTITION, f"gives row {rows[counts.argmax()]} twice")
    parts = [np.sort(part).astype(np.int64) for part in parts]
    if groups is not None:
        whose = np.full(len(labels), -1)
        for number, part in enumerate(parts):
            whose[part] = number
        _, first, codes = np.unique(groups, return_index=True, return_inverse=True)
        if not np.array_equal(whose[first][codes], whose):
            raise _make_return_error(code, _PARTITION, "divides a group, but the samples of one stay together")
    return parts


def _sequence(value: object) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"a {type(value).__name__}")
    return list(value)


def _make_return_error(code: OwnCode, due: tuple[str, str], what: str) -> DataError:
    kind, remedy = due
    return CodeError(f"the {kind} {code.name!r} {what}: let it return {remedy}.")


def _make_error(name: str, error: Exception) -> DataError:
    return CodeError(
        f"{name!r} cannot be used ({type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}): it must be a "
        "callable of yours that can be imported here and gives what docs/data.md says.",
    )
