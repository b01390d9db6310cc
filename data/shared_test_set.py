"""The shared test set of the ensemble: rows that every client predicts and none trains on."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from protosphere.core.errors import DataError
from protosphere.core.paths import is_path
from protosphere.data.client_data import Encode, Rows, rows_of
from protosphere.data.decoded_cache import Decoded
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.partition.row_hashes import content_hashes, fingerprint


@dataclass(frozen=True)
class SharedTestSpec:
    """Where the shared test set comes from: the rows that `spec` sets aside, or, if given, the data set at `path` (its
    test table where it has one, else all of it). `columns` are those of a site's own table there, which must have
    a classes.txt; None: those of `spec`."""

    spec: DataSpec
    cache_dir: Path
    path: str | None = None
    columns: Columns | None = None


@dataclass(frozen=True, eq=False)
class SharedLabels:
    """What the server needs: the right answers (n,) int64, K, and the fingerprint of rows and labels."""

    labels: torch.Tensor
    num_classes: int
    fingerprint: int


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


def refuse_unfit(where: SharedTestSpec, partition: int, data_path: str | None = None) -> None:
    """Hold the shared test set against one client's data: the form of its inputs, its classes, and the content of its
    rows against the client's training rows.

    Raises:
        DataError: the client's model could not read it, the classes differ, or a row is in both.
    """
    shared, rows = _open(where)
    data = open_data(where.spec, where.cache_dir, data_path)
    source = f"the shared test set {where.path!r}" if where.path else "the shared test set"
    wrong = ""
    if _form(shared) != _form(data):
        wrong = (
            f"holds {_form(shared)}, but this client's data {_form(data)}: point shared-test-path at a test set of "
            "this client's form, or leave it out, and samples are set aside; images become alike in size with "
            "image-size"
        )
    elif shared.columns != data.columns:
        wrong = "has other columns, or other values in them, than this client's table: put one columns.json beside both"
    elif shared.class_names != data.class_names:
        wrong = (
            f"has the classes {', '.join(shared.class_names)}, but this client's data {', '.join(data.class_names)}: "
            "give both the same classes.txt"
        )
    if wrong:
        raise DataError(f"{source} {wrong}.")
    row_assignment = assignment(where.spec, data, where.cache_dir, own=data_path is not None)
    train = row_assignment.train[0 if data_path is not None else partition]
    copies = np.flatnonzero(np.isin(content_hashes(shared.inputs, rows), content_hashes(data.inputs, train)))
    if copies.size:
        raise DataError(
            f"{source} overlaps this client's training samples: {copies.size} of its {rows.size} rows are copies of "
            f"some, row {rows[copies[0]]} first; take them out of one of the two, or the ensemble would be scored on "
            "what it was trained with.",
        )


def _form(data: Decoded) -> str:
    """What a model sees of a data set's inputs, in words."""
    if isinstance(data.inputs, Texts):
        return "texts"
    shape = "×".join(str(size) for size in data.inputs.shape[1:])
    return f"inputs {shape} of full scale {data.scale:g}"


def _open(where: SharedTestSpec) -> tuple[Decoded, np.ndarray]:
    """The decoded data set and which of its rows are the shared test set."""
    if where.path is None:
        data = open_data(where.spec, where.cache_dir)
        return data, assignment(where.spec, data, where.cache_dir).shared
    if not is_path(where.path):
        raise DataError(
            f"shared-test-path is {where.path!r}, but a path must start with /, ./, ../ or ~.",
        )
    # that code gives other rows
    spec = replace(where.spec, code=None)
    spec = spec if where.columns is None else replace(spec, columns=where.columns, listed="tables")
    try:
        data = open_data(spec, where.cache_dir, where.path)
    except DataError as error:
        raise type(error)(f"shared-test-path: {error}") from error
    total = len(data.labels)
    return data, np.arange(data.train_rows if data.train_rows < total else 0, total)


@functools.lru_cache(maxsize=8)
def _fingerprint(where: SharedTestSpec) -> int:
    data, rows = _open(where)
    return fingerprint(data.inputs, data.labels, rows)
