"""A user's own code for data: a callable that gives a torch `Dataset`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protosphere.core import objects, plugins
from protosphere.core.errors import CodeError, DataError, ModelError, words_of
from protosphere.data.forms.arrays import arrange
from protosphere.data.samples import Samples

USUAL = "dataset"  # the name of a file's callable if the setting names none


@dataclass(frozen=True)
class OwnCode:
    """A callable, by `package.module:NAME`, `./file.py` or `./file.py:NAME`.

    Attributes:
        name: without a file's folder. place: the name to load it by. digest: of the file's content.
    """

    name: str
    place: str
    digest: str

    def __call__(self) -> object:
        """Call it.

        Raises:
            CodeError: it cannot be loaded or called, or fails.
        """
        try:
            function = plugins.load(self.place, USUAL)
            if not callable(function):
                raise TypeError(f"it is of type {type(function).__name__}, which cannot be called")
            return function()
        except DataError:
            raise
        except Exception as error:
            raise _make_error(self.name, error) from error


def own_code(name: str) -> OwnCode | None:
    """The code that a setting names; None if it names none. Nothing is run, because a report calls this, too.

    Raises:
        CodeError: its file cannot be read.
    """
    if not plugins.is_plugin(name):
        return None
    try:
        digest = plugins.digest(name)
        if not digest and not objects.is_object(name):
            files = plugins.files_of(name)
            if not files:
                raise ImportError(f"there is no module {plugins.parted(name)[0]}")
            digest = hashlib.blake2b(files[-1].read_bytes(), digest_size=8).hexdigest() if files[-1].is_file() else ""
    except (ModelError, ImportError, OSError, ValueError) as error:
        raise _make_error(plugins.placeless(name), error) from error
    return OwnCode(plugins.placeless(name), name, digest)


def _make_error(name: str, error: Exception) -> CodeError:
    problem = f"{name!r} cannot be used ({type(error).__name__}: {words_of(error)})"
    return CodeError(f"{problem}: name a callable that can be imported here and gives what docs/data.md says.")


def read_code(code: OwnCode) -> Samples:
    """The samples that a callable returns."""
    result = code()
    arrays = read_items(list(result) if isinstance(result, tuple) else [result], f"the data set {code.name!r} gives")
    # with its `classes`, labels are positions, whatever the names are
    return arrange(code.name, arrays)


def read_items(datasets: Sequence[Any], source: str) -> dict[str, np.ndarray]:
    """One Dataset, or one of training and one of test samples, as arrays: `x`, `y`, perhaps `x_test`, `y_test`, and
    `classes` if the first one has their names. Inputs are tensors or arrays of one shape, or images of PIL's.

    Args:
        source: the start of an error message, up to the verb.

    Raises:
        CodeError: there is no Dataset, or an item cannot be used.
    """

    def refusal(problem: str) -> CodeError:
        remedy = "give a torch Dataset of (tensor, int), all of one shape, or a pair of them for training and test"
        return CodeError(f"{source} {problem}: {remedy}.")

    if len(datasets) not in (1, 2):
        raise refusal(f"a tuple of {len(datasets)} things")
    arrays: dict[str, np.ndarray] = {}
    for dataset, end in zip(datasets, ("", "_test"), strict=False):
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise refusal(f"a {type(dataset).__name__}")
        items = []
        for row in range(len(dataset)):
            try:
                items.append(_to_arrays(*dataset[row]))
            except Exception as error:
                raise refusal(f"a Dataset that fails at item {row} ({type(error).__name__}: {error})") from error
        if not items:
            raise refusal("a Dataset without items")
        if len({(x.shape, x.dtype) for x, _ in items}) > 1:
            raise refusal("items of several shapes or types")
        arrays["x" + end] = np.stack([x for x, _ in items])
        arrays["y" + end] = np.array([y for _, y in items])

    if hasattr(datasets[0][0][0], "getbands"):
        # an image of PIL has its channels last, however many there are
        arrays["axes"] = np.array("NHWC" if arrays["x"].ndim == 4 else "NHW")
    # a part of a Dataset, as from `random_split`, has the class names in the whole one
    full_dataset: Any = datasets[0] if hasattr(datasets[0], "classes") else getattr(datasets[0], "dataset", None)
    if hasattr(full_dataset, "classes"):
        arrays["classes"] = np.array([str(name) for name in full_dataset.classes])
    return arrays


def _to_arrays(x: Any, y: Any) -> tuple[np.ndarray, int]:
    if getattr(x, "mode", "") in ("P", "1"):
        # the numbers of a palette image are no colours
        x = x.convert("RGB" if x.mode == "P" else "L")
    inputs = x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
    label = int(y)
    if label != y:
        raise ValueError(f"its label is {y}, no whole number")
    return inputs, label
