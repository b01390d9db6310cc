"""The samples of a data set, and the folder of NumPy arrays from which every process of a machine maps them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protosphere.data.forms.table_schema import Column, columns_from_json
from protosphere.data.forms.texts import CONTENT, Texts

INPUTS = "inputs.npy"
ABOUT = "about.json"
# what is known of each sample besides its inputs; `labels` alone is always there
ARRAYS = ("labels", "groups", "domains", "sites")


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set; training samples come first.

    Attributes:
        name: the data set's, for messages.
        inputs: (n, ...) uint8 or float32, of images (n, C, H, W); or n Texts.
        labels: (n,) int64 in 0..K−1.
        train_rows: how many are for training.
        class_names: K names.
        scale: the value of a full-scale input.
        columns: of a table of numbers and categories, what its features are.
        groups: (n,) int64, equal for samples that must stay together; None where none must.
        domains: (n,) int64, the domain of each by its place in `domain_names`; None where the data are of no domains.
        sites: (n,) int64, the value of `partition-column` by its place in `site_names`; None without that column.
        key: changes whenever the data do; "" before they are in the cache.
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

    def save(self, folder: Path) -> None:
        """Write what `load` reads. Inputs that a reader has written there itself, as memory maps or texts, stay.

        Raises:
            OSError: it cannot be written.
        """
        if isinstance(self.inputs, np.ndarray) and not isinstance(self.inputs, np.memmap):
            np.save(folder / INPUTS, self.inputs)
        for name in ARRAYS:
            values = getattr(self, name)
            if values is not None:
                np.save(folder / f"{name}.npy", values)

        about = {
            "name": self.name,
            "train_rows": self.train_rows,
            "class_names": self.class_names,
            "scale": self.scale,
            "columns": [column.as_json() for column in self.columns],
            "domain_names": self.domain_names,
            "site_names": self.site_names,
            "arrays": [name for name in ARRAYS if getattr(self, name) is not None],
        }
        (folder / ABOUT).write_text(json.dumps(about), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Samples | None:
        """What `save` has written, the inputs as a read-only memory map; None if it is not there or not whole."""
        try:
            about = json.loads((folder / ABOUT).read_text("utf-8"))
            is_text = (folder / CONTENT).exists()
            arrays = {name: np.load(folder / f"{name}.npy") for name in about.pop("arrays")}
            return cls(
                **about
                | arrays
                | {
                    "inputs": Texts.open(folder) if is_text else np.load(folder / INPUTS, mmap_mode="r"),
                    "class_names": tuple(about["class_names"]),
                    "columns": columns_from_json(about["columns"]),
                    "domain_names": tuple(about["domain_names"]),
                    "site_names": tuple(about["site_names"]),
                    "key": folder.name,
                }
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
            return None
