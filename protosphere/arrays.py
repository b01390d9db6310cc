"""Stores a user's arrays, or the items of a torch Dataset, in a file that every process of a run can open."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from protosphere.core.errors import DataError, SettingError
from protosphere.core.home import home
from protosphere.data.forms.arrays import write_arrays
from protosphere.data.user_code import read_items
from protosphere.names import Value

KEYS = ("x", "y", "x_test", "y_test")
WORDS = (str, os.PathLike)
SOURCE = "the setting `dataset` is given"


def data_of(dataset: "Value | Mapping[str, Any] | Sequence[Any] | Dataset[Any] | None") -> Any:
    """A data set's name or path, unchanged; for arrays or a Dataset, the path of their file in PROTOSPHERE_HOME."""
    if isinstance(dataset, Mapping):
        return _write(dataset)
    if dataset is None or isinstance(dataset, WORDS):
        return dataset
    if isinstance(dataset, Dataset):
        return _write(read_items([dataset], SOURCE))
    if not isinstance(dataset, tuple | list):
        raise SettingError(
            f"dataset is a {type(dataset).__name__}, but it is a name, a path, arrays as (x, y) or (x, y, x_test, "
            "y_test), or a torch Dataset with a length; of a table give the path of its file."
        )
    if dataset and all(isinstance(item, WORDS) for item in dataset):
        return dataset
    if any(isinstance(part, Dataset) for part in dataset):
        return _write(read_items(dataset, SOURCE))
    if len(dataset) not in (2, 4):
        raise SettingError(
            f"dataset is {len(dataset)} arrays, but it is (x, y) or (x, y, x_test, y_test); a mapping of names can "
            "hold more."
        )
    return _write(dict(zip(KEYS, dataset, strict=False)))


def _write(arrays: Mapping[str, Any]) -> str:
    return str(
        write_arrays(home() / "arrays", {str(name): array(str(name), values) for name, values in arrays.items()})
    )


def array(name: str, values: Any) -> "np.ndarray[Any, np.dtype[Any]]":
    """A NumPy array from tensors of any type and device, or from lists of rows."""
    try:
        if isinstance(values, list | tuple) and any(isinstance(row, torch.Tensor) for row in values):
            values = torch.stack([torch.as_tensor(row) for row in values])
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
            # a type that NumPy lacks
            values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be made an array ({error}): give samples of one shape.") from None


def is_arrays(dataset: object) -> bool:
    """Whether the value is a tuple or mapping of arrays, or a Dataset, and not one or several names."""
    if isinstance(dataset, Mapping):
        return "x" in dataset
    if isinstance(dataset, Dataset):
        return True
    return isinstance(dataset, tuple | list) and not all(isinstance(item, WORDS) for item in dataset)
