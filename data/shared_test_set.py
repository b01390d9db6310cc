"""The shared test set of the ensemble, in a simulation: samples that every client predicts and none trains on."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from protosphere.data.client_data import Encode, Rows, rows_of
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.partition.row_hashes import fingerprint
from protosphere.data.samples import Samples


@dataclass(frozen=True)
class SharedTestSpec:
    """Where the shared test set comes from: the samples that `spec` sets aside."""

    spec: DataSpec
    cache_dir: Path


@dataclass(frozen=True, eq=False)
class SharedLabels:
    """What the server needs: the right answers (n,) int64, K, and the fingerprint of rows and labels."""

    labels: torch.Tensor
    num_classes: int
    fingerprint: int


def forget() -> None:
    """As that of client_data: look at the files again."""
    shared_rows.cache_clear()
    _fingerprint.cache_clear()


def shared_labels(where: SharedTestSpec) -> SharedLabels:
    """The right answers of the shared test set.

    Raises:
        DataError: the data set cannot be used, or there is no shared test set in it.
    """
    data, rows = _open(where)
    return SharedLabels(torch.from_numpy(data.labels[rows]), len(data.class_names), _fingerprint(where))


@functools.lru_cache(maxsize=8)
def shared_rows(where: SharedTestSpec, device: torch.device, encode: Encode | None = None) -> tuple[Rows, int]:
    """The shared test set as a client's model takes it, and its fingerprint. A process keeps the last ones.

    Raises:
        DataError: as `shared_labels`.
    """
    data, rows = _open(where)
    return rows_of(data, rows, device, encode), _fingerprint(where)


def _open(where: SharedTestSpec) -> tuple[Samples, np.ndarray]:
    """The decoded data set and which of its rows are the shared test set."""
    data = open_data(where.spec, where.cache_dir)
    return data, assignment(where.spec, data, where.cache_dir).shared


@functools.lru_cache(maxsize=8)
def _fingerprint(where: SharedTestSpec) -> int:
    data, rows = _open(where)
    return fingerprint(data.inputs, data.labels, rows)
