"""One client's data: its own samples as tensors on its device, and the transform to the model's inputs."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from protosphere.core.errors import DataError
from protosphere.data.decode import open_data
from protosphere.data.forms.table_schema import Column, TableSchema, columns_from_json
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.assignment import assignment, domain_of, name_of
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec

_EQUAL = 1e-9  # relative to the mean: the deviation of equal values through rounding alone


class Encode(Protocol):
    """A tokenizer; hashable; equal ones give equal token ids."""

    @property
    def encoder(self) -> str:
        """The encoder that the tokenizer belongs to."""

    @property
    def max_tokens(self) -> int:
        """The number of ids per text."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """n texts -> (n, max_tokens) int; after the end of a text, ids are negative."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs (n, ...) as stored, uint8 or float32, or token ids (n, L) int32; and labels (n,) int64. On the client's
    device."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class InputTransform:
    """From stored inputs to the model's inputs: (inputs / scale − mean) / std, per channel (images) or feature.

    Attributes:
        scale: the value of a full-scale input. shape: of one input, (C, H, W), (F,) or another.
        mean, std: one entry per channel or feature, the first axis. They are constants, except for the numbers of a
            table, which are scaled by this client's own training samples and stay with the client.
        columns: the columns of a table; a missing number becomes the mean.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs (n, *shape) of any type to float32; images are stored channels last, which is fastest."""
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
        # with one channel, `contiguous` changes nothing, and the outputs of convolutions would not be channels last
        return outputs.to(memory_format=torch.channels_last) if len(self.shape) == 3 else outputs

    @property
    def plain(self) -> "InputTransform":
        """The transform with constants only, which reveals nothing about a client's samples."""
        centre, spread = (0.0, 1.0) if self.scale == 1 else (0.5, 0.5)
        return replace(self, mean=(centre,) * self.shape[0], std=(spread,) * self.shape[0])

    @property
    def form(self) -> tuple[Any, ...]:
        """The part that is equal for all clients of a data set."""
        return self.scale, self.shape, self.columns

    @property
    def pixels(self) -> bool:
        """Whether the inputs are images of integers up to a full scale."""
        return self.scale != 1 and len(self.shape) == 3

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        values = {"scale": self.scale, "mean": list(self.mean), "std": list(self.std), "shape": list(self.shape)}
        columns = {"columns": [column.as_json() for column in self.columns]} if self.columns else {}
        return values | columns

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "InputTransform":
        """The inverse of to_dict."""
        columns = columns_from_json(stored.get("columns", ()))
        return cls(float(stored["scale"]), tuple(stored["mean"]), tuple(stored["std"]), tuple(stored["shape"]), columns)


@dataclass(frozen=True)
class TokenTransform:
    """From stored token ids to the model's inputs: the same as int64; `shape` is (L,)."""

    tokenizer: str
    shape: tuple[int]

    @property
    def plain(self) -> "TokenTransform":
        """Itself, because it has constants only."""
        return self

    @property
    def form(self) -> tuple[Any, ...]:
        """The part that is equal for all clients of one tokenizer: all of it."""
        return self.tokenizer, self.shape

    def __call__(self, inputs: Tensor) -> Tensor:
        """(n, L) of any integer type to int64."""
        return inputs.to(torch.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"tokenizer": self.tokenizer, "shape": list(self.shape)}


Transform = InputTransform | TokenTransform


# Copying it to a GPU for every batch would make the host wait.
@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    # a tensor created in inference mode cannot be used in training
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)


@dataclass(frozen=True, eq=False)
class ClientData:
    """The samples of one client. Any part may have none.

    Attributes:
        domain: the domain of all samples; "" if there are no domains or several.
        name: the values of the column, or the data sets, that the partition gives to the client.
        groups: (n,) int64, of the training samples; None if the data have no groups.
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
        """The number of the data set's classes, whether or not this client has samples of them."""
        return len(self.class_names)


def size_in_bytes(data: ClientData) -> int:
    """The size of a client's samples."""
    return sum(rows.inputs.nbytes + rows.labels.nbytes for rows in (data.train, data.test, data.validation))


def client_data(
    spec: DataSpec,
    partition: int,
    cache_dir: Path,
    device: torch.device | str = "cpu",
    data_path: str | None = None,
    encode: Encode | None = None,
) -> ClientData:
    """The samples of one client, split into train, test and validation.

    Args:
        partition: the client, 0 to spec.clients − 1.
        cache_dir: the folder of decoded data sets and assignments, shared by the processes of a machine.
        data_path: a real client's own folder, whose samples all belong to this client.
        encode: the tokenizer; None for a model that takes images or numbers.
    """
    device = torch.device(device)
    is_single = data_path is not None
    if not is_single and not 0 <= partition < spec.clients:
        raise DataError(f"partition {partition} does not exist: {spec.clients} clients are numbered from 0.")
    data = open_data(spec, cache_dir, data_path)
    rows = assignment(spec, data, cache_dir, single=is_single)
    client = 0 if is_single else partition
    train = rows.train[client]
    return ClientData(
        train=rows_of(data, train, device, encode),
        test=rows_of(data, rows.test[client], device, encode),
        validation=rows_of(data, rows.validation[client], device, encode),
        class_names=data.class_names,
        transform=_transform(data, encode, train),
        domain=domain_of(data, rows.rows_of(client)),
        name="" if is_single else name_of(spec, data, rows.rows_of(client)),
        groups=None if data.groups is None else torch.from_numpy(data.groups[train]),
    )


def rows_of(data: Samples, rows: np.ndarray, device: torch.device, encode: Encode | None = None) -> Rows:
    """Some samples of a decoded data set as tensors on a device."""
    refuse_other_inputs(data, encode is not None)
    # indexing with an array copies from the memory map
    client_inputs = data.inputs[rows]
    inputs = torch.from_numpy(np.asarray(client_inputs)) if encode is None else encode(client_inputs)
    return Rows(inputs.to(device), torch.from_numpy(data.labels[rows]).to(device))


def refuse_other_inputs(data: Samples, texts: bool) -> None:
    """Refuse texts if the model does not read `texts`, and other data if it does."""
    if isinstance(data.inputs, Texts) == texts:
        return
    content, expected = ("images or numbers", "texts") if texts else ("texts", "images or numbers")
    remedy = "one that is no hf:<encoder>" if texts else "hf:<encoder>"
    raise DataError(f"{data.name!r} holds {content}, but a client's model takes {expected}: give it a model {remedy}.")


def _transform(data: Samples, encode: Encode | None, train: np.ndarray) -> Transform:
    if encode is not None:
        return TokenTransform(encode.encoder, (encode.max_tokens,))
    assert isinstance(data.inputs, np.ndarray)
    shape = tuple(int(size) for size in data.inputs.shape[1:])
    plain = InputTransform(data.scale, (0.0,) * shape[0], (1.0,) * shape[0], shape, data.columns).plain
    if not data.columns:
        return plain
    mean, std = np.zeros(shape[0]), np.ones(shape[0])
    numbers = TableSchema(data.columns).numeric
    mean[numbers], std[numbers] = standard(data.inputs[train][:, numbers])
    return replace(plain, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def standard(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column of (n, k), ignoring NaN; 0 and 1 if no value is left, and a deviation
    of 1 for a constant."""
    present = ~np.isnan(values)
    count = np.maximum(present.sum(axis=0), 1)
    exact = np.where(present, values, 0).astype(np.float64)
    mean = exact.sum(axis=0) / count
    std = np.sqrt((np.where(present, exact - mean, 0) ** 2).sum(axis=0) / count)
    return mean, np.where(std > _EQUAL * np.maximum(np.abs(mean), 1e-30), std, 1.0)
