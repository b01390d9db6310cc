"""Arrays that a user gives for a data set, as the file that every process of a run can open."""

from collections.abc import Mapping, Sequence
from typing import Any

from data.arrays import write_arrays
from federation.settings import SettingError, home
from protosphere.names import Value

KEYS = ("x", "y", "x_test", "y_test")


def data_of(dataset: "Value | Mapping[str, Any] | Sequence[Any]") -> Any:
    """A data set's name or path as it is; of arrays the path of their file in PROTOSPHERE_HOME.

    Raises:
        SettingError: a sequence that is neither names nor arrays.
        DataError: arrays that are no data set.
    """
    if isinstance(dataset, Mapping):
        return str(write_arrays(home() / "arrays", dataset))
    if not is_arrays(dataset):
        return dataset
    assert isinstance(dataset, tuple | list)
    if len(dataset) not in (2, 4):
        raise SettingError(
            f"dataset is {len(dataset)} arrays, but it is (x, y) or (x, y, x_test, y_test); a mapping of names can "
            "hold more."
        )
    return str(write_arrays(home() / "arrays", dict(zip(KEYS, dataset, strict=False))))


def is_arrays(dataset: object) -> bool:
    """Whether it is arrays in a row, or by their names."""
    if isinstance(dataset, Mapping):
        return hasattr(dataset.get("x"), "__array__")
    return isinstance(dataset, tuple | list) and any(hasattr(each, "__array__") for each in dataset)
