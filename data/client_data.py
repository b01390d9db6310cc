"""One client's data: its own rows as tensors on its device, and how inputs become what a model sees."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from protosphere.core.errors import DataError
from protosphere.data.forms.table_schema import Column, TableSchema, columns_from_json
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.assignment import DataSpec, assignment, domain_of, name_of, open_data
from protosphere.data.samples import Samples

_SAME = 1e-9  # of the mean: what equal values deviate by rounding alone


class Encode(Protocol):
    """What makes token ids of texts; hashable, and equal ones give equal ids."""

    @property
    def encoder(self) -> str:
        """Whose tokenizer it is."""

    @property
    def max_tokens(self) -> int:
        """Ids in a row."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """n texts -> (n, max_tokens) int, what is beyond a text's end below 0."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs (n, C, H, W) or (n, ...), uint8 or float32 as stored, or token ids (n, L) int32; and labels (n,) int64.
    On the client's device."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class InputTransform:
    """Stored inputs to what a model sees: (inputs / scale − mean) / std, per channel (images) or feature.

    `shape` is the shape of one input, (C, H, W), (F,) or another; `mean` and `std` have one entry per channel or
    feature, the first axis. They are constants, but those of a table's numbers are of this client's own training rows,
    and stay with it. `columns` make a table's features, a missing number the mean.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs (n, *shape) of any number type to float32 of the same shape, on their device; images channels last in
        memory, as convolutions read them fastest.

        Raises:
            DataError: the inputs have another shape.
        """
        if tuple(inputs.shape[1:]) != self.shape:
            raise DataError(
                f"inputs have the shape {tuple(inputs.shape[1:])}, but the data set has {self.shape}: resize them."
            )
        trailing = (1,) * (len(self.shape) - 1)
        mean = _constant(self.mean, inputs.device).view(-1, *trailing)
        std = _constant(self.std, inputs.device).view(-1, *trailing)
        outputs = (inputs.to(torch.float32) / self.scale).sub_(mean).div_(std)
        if self.columns:
            outputs = torch.where(outputs.isnan(), torch.zeros_like(outputs), outputs)
        # not `contiguous`: of one channel every layout is that, and what a convolution gives would not be channels last
        return outputs.to(memory_format=torch.channels_last) if len(self.shape) == 3 else outputs

    @property
    def plain(self) -> "InputTransform":
        """That of constants alone, for whoever must learn nothing of a client's rows from it."""
        centre, spread = (0.0, 1.0) if self.scale == 1 else (0.5, 0.5)
        return replace(self, mean=(centre,) * self.shape[0], std=(spread,) * self.shape[0])

    @property
    def form(self) -> tuple[Any, ...]:
        """What is the same for all clients of a data set, whatever their rows."""
        return self.scale, self.shape, self.columns

    @property
    def pixels(self) -> bool:
        """Whether the inputs are images as files hold them, whole numbers of a full scale."""
        return self.scale != 1 and len(self.shape) == 3

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        plain = {name: getattr(self, name) for name in ("scale", "mean", "std", "shape")}
        columns = {"columns": [column.as_json() for column in self.columns]} if self.columns else {}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()} | columns

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "InputTransform":
        """The inverse of to_dict."""
        columns = columns_from_json(stored.get("columns", ()))
        return cls(float(stored["scale"]), tuple(stored["mean"]), tuple(stored["std"]), tuple(stored["shape"]), columns)


@dataclass(frozen=True)
class TokenTransform:
    """Token ids as stored to what a text model sees: the same as int64.

    `shape` is (L,); `tokenizer` says whose ids they are.
    """

    tokenizer: str
    shape: tuple[int]

    @property
    def plain(self) -> "TokenTransform":
        """Itself: of constants alone."""
        return self

    @property
    def form(self) -> tuple[Any, ...]:
        """All of it: the same for all clients of one tokenizer."""
        return self.tokenizer, self.shape

    def __call__(self, inputs: Tensor) -> Tensor:
        """(n, L) of any integer type to int64."""
        return inputs.to(torch.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"tokenizer": self.tokenizer, "shape": list(self.shape)}


Transform = InputTransform | TokenTransform


# A copy to a GPU in every batch would make the host wait.
@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    # made under inference mode it would be unusable in training
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)


@dataclass(frozen=True, eq=False)
class ClientData:
    """All that one client holds. Any part may have no rows.

    `name` is what the partition calls the client: the values of the column, or the data sets, that it has got.
    `domain` is the name of the one domain that all its own rows come from, "" if there are no domains or several.
    `groups` (n,) int64 are those of the training rows, None where the data have none.
    """

    train: Rows
    test: Rows
    validation: Rows
    class_names: tuple[str, ...]
    transform: Transform
    domain: str = ""
    name: str = ""
    groups: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Classes of the data set, held by this client or not."""
        return len(self.class_names)


def size_in_bytes(data: ClientData) -> int:
    """Of a client's rows."""
    return sum(rows.inputs.nbytes + rows.labels.nbytes for rows in (data.train, data.test, data.validation))


def client_data(
    spec: DataSpec,
    partition: int,
    cache_dir: Path,
    device: torch.device | str = "cpu",
    data_path: str | None = None,
    encode: Encode | None = None,
) -> ClientData:
    """The rows of one client, split into train, test and validation.

    Args:
        spec: what decides who holds what.
        partition: the client, 0 to spec.clients − 1.
        cache_dir: where decoded data sets and assignments are kept, shared by the processes of a machine.
        device: where the tensors go.
        data_path: a real client's own folder: its rows all belong to this client and no partitioner runs.
        encode: what makes token ids of texts; None for a model that takes images or numbers.

    Raises:
        DataError: the data set or a setting cannot be used, it holds texts and the model reads none or the other way
            round, or the partition is out of range.
    """
    device = torch.device(device)
    has_own_data = data_path is not None
    if not has_own_data and not 0 <= partition < spec.clients:
        raise DataError(f"partition {partition} does not exist: {spec.clients} clients are numbered from 0.")
    data = open_data(spec, cache_dir, data_path)
    row_assignment = assignment(spec, data, cache_dir, own=has_own_data)
    client = 0 if has_own_data else partition
    return ClientData(
        train=rows_of(data, row_assignment.train[client], device, encode),
        test=rows_of(data, row_assignment.test[client], device, encode),
        validation=rows_of(data, row_assignment.validation[client], device, encode),
        class_names=data.class_names,
        transform=_transform(data, encode, row_assignment.train[client]),
        domain=domain_of(data, row_assignment.held_by(client)),
        name="" if has_own_data else name_of(spec, data, row_assignment.held_by(client)),
        groups=None if data.groups is None else torch.from_numpy(data.groups[row_assignment.train[client]]),
    )


def rows_of(data: Samples, rows: np.ndarray, device: torch.device, encode: Encode | None = None) -> Rows:
    """Some rows of a decoded data set as tensors on a device.

    Raises:
        DataError: texts without `encode`, or images with it.
    """
    refuse_other_inputs(data, encode is not None)
    # indexing with an array copies out of the memory map
    client_inputs = data.inputs[rows]
    inputs = torch.from_numpy(np.asarray(client_inputs)) if encode is None else encode(client_inputs)
    return Rows(inputs.to(device), torch.from_numpy(data.labels[rows]).to(device))


def refuse_other_inputs(data: Samples, texts: bool) -> None:
    """Refuse a data set that holds no texts where the model reads `texts`, and the other way round.

    Raises:
        DataError: names what it holds and which model takes that.
    """
    if isinstance(data.inputs, Texts) == texts:
        return
    content, expected = ("images or numbers", "texts") if texts else ("texts", "images or numbers")
    remedy = "one that is no hf:<encoder>" if texts else "hf:<encoder>"
    raise DataError(
        f"{data.name!r} holds {content}, but a client's model takes {expected}: give it a model {remedy}.",
    )


def _transform(data: Samples, encode: Encode | None, train: np.ndarray) -> Transform:
    """Of constants; a table's numbers by a client's rows `train`."""
    if isinstance(data.inputs, Texts) or encode is not None:
        assert encode is not None
        return TokenTransform(encode.encoder, (encode.max_tokens,))
    shape = tuple(int(size) for size in data.inputs.shape[1:])
    plain = InputTransform(data.scale, (0.0,) * shape[0], (1.0,) * shape[0], shape, data.columns).plain
    if not data.columns:
        return plain
    mean, std = np.zeros(shape[0]), np.ones(shape[0])
    numbers = TableSchema(data.columns).numeric
    mean[numbers], std[numbers] = standard(data.inputs[train][:, numbers])
    return replace(plain, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def standard(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column of (n, k), of what is no NaN; 0 and 1 where nothing is, and 1 for the
    deviation of a constant."""
    present = ~np.isnan(values)
    count = np.maximum(present.sum(axis=0), 1)
    exact = np.where(present, values, 0).astype(np.float64)
    mean = exact.sum(axis=0) / count
    std = np.sqrt((np.where(present, exact - mean, 0) ** 2).sum(axis=0) / count)
    return mean, np.where(std > _SAME * np.maximum(np.abs(mean), 1e-30), std, 1.0)
