"""The samples of a data set, and the folder of NumPy arrays that every process of a machine maps."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.data.forms.table_schema import Column, columns_from_json
from protosphere.data.forms.texts import BOUNDS, CONTENT, Texts

INPUTS = "inputs.npy"
ABOUT = "about.json"
# arrays with a value per sample; only `labels` is always present
ARRAYS = ("labels", "groups", "domains", "sites")
NAMES = ("class_names", "domain_names", "site_names")


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set; training samples come first.

    Attributes:
        name: the data set's, for messages.
        inputs: (n, ...) uint8 or float32, images as (n, C, H, W); or n Texts.
        labels: (n,) int64 in 0..K−1.
        train_rows: the number of training samples.
        class_names: K names.
        scale: the value of a full-scale input.
        columns: the columns of a table of numbers and categories, which become its features.
        groups: (n,) int64, equal for samples that must stay together; None without groups.
        domains: (n,) int64, each sample's domain by its position in `domain_names`; None without domains.
        sites: (n,) int64, the value of `partition-column` by its position in `site_names`; None without that column.
        key: of the cache entry; it changes whenever the data change. "" before they are in the cache.
    """

    name: str
    inputs: np.ndarray | Texts
    labels: np.ndarray
    train_rows: int
    class_names: tuple[str, ...]
    scale: float = 1.0
    columns: tuple[Column, ...] = ()
    groups: np.ndarray | None = None
    domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    sites: np.ndarray | None = None
    site_names: tuple[str, ...] = ()
    key: str = ""

    @property
    def are_usable(self) -> np.ndarray:
        """While it is read: whether each row has a label, and a group if there are groups, (n,) bool."""
        usable: np.ndarray = self.labels >= 0
        return usable if self.groups is None else usable & (self.groups >= 0)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays with a value per sample, by name."""
        values = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in values.items() if array is not None}

    def take(self, rows: np.ndarray) -> Samples:
        """The samples of `rows` (m,) int64, in that order, training samples first."""
        arrays: dict[str, Any] = {name: values[rows] for name, values in self.arrays.items()}
        if self.groups is not None:
            arrays["groups"] = number_by_first(self.groups[rows])
        # inputs may be large, so they are copied only if some go
        is_whole = np.array_equal(rows, np.arange(len(self.labels)))
        inputs = self.inputs if is_whole else self.inputs.take(rows, axis=0)
        return replace(self, inputs=inputs, train_rows=int((rows < self.train_rows).sum()), **arrays)

    def save(self, folder: Path) -> None:
        """Write what `load` reads. Inputs that a reader has already written there, as memory maps or texts, are kept.
        Raises OSError if it cannot be written."""
        if isinstance(self.inputs, Texts):
            np.save(folder / BOUNDS, self.inputs.bounds)
        elif not isinstance(self.inputs, np.memmap):
            np.save(folder / INPUTS, self.inputs)
        for name, values in self.arrays.items():
            np.save(folder / f"{name}.npy", values)
        about = {name: getattr(self, name) for name in ("name", "train_rows", "scale", *NAMES)}
        about |= {"columns": [column.as_json() for column in self.columns], "arrays": list(self.arrays)}
        (folder / ABOUT).write_text(json.dumps(about), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Samples | None:
        """The samples that `save` has written, their inputs as a read-only memory map; None if they are incomplete."""
        try:
            values = json.loads((folder / ABOUT).read_text("utf-8"))
            values["columns"] = columns_from_json(values["columns"])
            for name in NAMES:
                values[name] = tuple(values[name])
            for name in values.pop("arrays"):
                values[name] = np.load(folder / f"{name}.npy")
            is_text = (folder / CONTENT).exists()
            inputs = Texts.open(folder) if is_text else np.load(folder / INPUTS, mmap_mode="r")
            return cls(inputs=inputs, key=folder.name, **values)
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
            return None


def number_by_first(values: np.ndarray) -> np.ndarray:
    """Number distinct values in the order of their first rows: (n,) int64."""
    import pandas as pd

    numbers: np.ndarray = pd.factorize(values)[0].astype(np.int64)
    return numbers
