"""A trained client: predictions and export of its private model."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from protosphere.arrays import WORDS, array
from protosphere.core.errors import DataError
from protosphere.data.client_data import InputTransform
from protosphere.data.forms.table_schema import Column
from protosphere.serving.inputs import TableRows, read_inputs, read_rows
from protosphere.serving.predict import WITH_PROBABILITIES, Trained, open_trained

Array = np.ndarray[Any, np.dtype[Any]]
Inputs: TypeAlias = Array | torch.Tensor | pd.DataFrame | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, eq=False)
class Predictions:
    """A client's predictions for n inputs.

    Attributes:
        rule: the inference rule.
        labels: (n,) int64.
        names: n class names.
        probabilities: (n, K) float64, summing to 1 per sample; None for a rule without probabilities.
        scores: (n, K) float64, higher is better; minus infinity for a class that the rule does not know.
        unknown: (n,) bool: table rows with a category that no training sample had; `unknown.sum()` counts them.
    """

    rule: str
    labels: Array
    names: tuple[str, ...]
    probabilities: Array | None
    scores: Array
    unknown: Array


class Client:
    """A trained client: its private model, without its training samples.

    Attributes:
        folder: PROTOSPHERE_HOME/clients/<run>/<partition>, which holds the model.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu", trust: bool = False):
        self.folder = Path(folder)
        self._trained: Trained = open_trained(self.folder, device, trust=trust)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._trained.model

    @property
    def module(self) -> torch.nn.Module:
        """The model itself, in evaluation mode; it takes inputs of `input_shape`, scaled as in training."""
        return self._trained.state.module

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) for images, (F,) for vectors of numbers, (tokens,) for texts."""
        return tuple(self._trained.transform.shape)

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names in label order."""
        return self._trained.class_names

    @property
    def rules(self) -> tuple[str, ...]:
        """The inference rules that the client can apply."""
        return self._trained.rules()

    def predict(self, x: "Inputs", rule: str = "") -> Predictions:
        """Classify inputs.

        >>> client = run.client(0)
        >>> client.input_shape
        (2,)
        >>> found = client.predict(np.array([[0.5, 0.5], [-1.0, 0.0]]), rule="classifier")
        >>> found.labels.shape, found.probabilities.shape
        ((2,), (2, 6))

        Args:
            x: samples as in the data set, before any scaling: images as (n, C, H, W) integers, (n, F) or other numbers;
                or image or text files; or, for a text model, texts as `str` (a file of texts is a Path). For a client
                trained on a table, a DataFrame with its columns.
            rule: "" for the client's own.

        Raises:
            SettingError: this client cannot apply the rule, or its model takes other inputs.
            DataError: samples of another shape, or a file that cannot be read.
        """
        rule_name = self._trained.find_rule(rule)
        unknown: Sequence[int] = ()
        if isinstance(x, pd.DataFrame) and self._columns():
            table = self._table(x)
            rows, unknown = table.features, list(table.unknown)
        else:
            rows = self._inputs(x, rule_name)
        scores = torch.zeros(0, len(self.class_names), dtype=torch.float64)
        if len(rows):
            scores = self._trained.scores(rule_name, rows).double().cpu()
        labels = scores.argmax(dim=1).numpy()
        return Predictions(
            rule=rule_name,
            labels=labels,
            names=tuple(self.class_names[label] for label in labels.tolist()),
            probabilities=torch.softmax(scores, dim=1).numpy() if rule_name in WITH_PROBABILITIES else None,
            scores=scores.numpy(),
            unknown=np.isin(np.arange(len(rows)), unknown),
        )

    def _columns(self) -> tuple[Column, ...]:
        transform = self._trained.transform
        return transform.columns if isinstance(transform, InputTransform) else ()

    def export(self, output: str | os.PathLike[str], rule: str = "", force: bool = False) -> Path:
        """Write the model to one file that works without this project, with its class names and a description of its
        inputs.

        >>> run.client(0).export(run.folder / "model.pt2", rule="classifier").name
        'model.pt2'

        Args:
            output: the file: for `torch.export` if its name ends in `.pt2`, for ONNX if it ends in `.onnx`.
            rule: "" for the client's own.
            force: whether an existing file may be overwritten.

        Returns:
            The file.

        Raises:
            SettingError: the suffix or rule is invalid, the file exists, or the model cannot be exported (with the
                reason).
        """
        # it imports torch's compiler
        from protosphere.serving.export import export

        target = Path(output).expanduser()
        export(self._trained, target, rule, force)
        return target

    def _table(self, x: pd.DataFrame) -> TableRows:
        names = [column.name for column in self._columns() if column.name in x.columns]
        for name in names:
            if list(x.columns).count(name) > 1:
                raise DataError(f"x has the column {name!r} twice: give each column its own name.")
        try:
            table = pa.Table.from_pandas(x[names], preserve_index=False)
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(
                f"x has a column of numbers and words alike, or of numbers beyond 64 bits ({error}): write it as one "
                "kind."
            ) from None
        rows = read_rows(self._columns(), table)
        for problem in rows.problems.values():
            raise DataError(problem)
        return rows

    def _inputs(self, x: "Inputs", rule: str) -> torch.Tensor:
        transform, is_text = self._trained.transform, self._trained.tokens is not None
        if isinstance(x, WORDS):
            x = [x]
        if isinstance(x, np.ndarray) and x.dtype.kind in "OU":
            x = x.tolist()
        if isinstance(x, list | tuple | pd.Series) and all(isinstance(item, WORDS) for item in x):
            sources = [item if is_text and isinstance(item, str) else Path(item) for item in x]
            inputs = read_inputs(self._trained, sources)
            for problem in filter(None, (item.problem for item in inputs)):
                raise DataError(problem)
            return torch.stack([item.read(self._trained, rule) for item in inputs])
        # a copy: torch cannot share memory with read-only arrays or negative strides
        rows = np.array(array("x", x))
        if rows.dtype.kind not in "biuf" or rows.shape[1:] != self.input_shape or not rows.ndim:
            raise DataError(
                f"x holds {rows.dtype} of shape {rows.shape}, but this client's model takes numbers of shape "
                f"(n, {', '.join(map(str, self.input_shape))})."
            )
        if isinstance(transform, InputTransform) and transform.pixels:
            # an image whose channels were scaled to 1 would be all black
            if rows.size and (rows.dtype.kind == "f" or not 0 <= rows.min() <= rows.max() <= transform.scale):
                raise DataError(
                    f"x holds {rows.dtype} from {rows.min()} to {rows.max()}, but images are stored as whole numbers "
                    f"from 0 to {transform.scale:g}, which the client scales itself."
                )
        elif not is_text:
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32)
            # a number of a table may be missing
            wrong = np.argwhere(np.isinf(rows) if self._columns() else ~np.isfinite(rows)).tolist()
            if wrong:
                raise DataError(
                    f"x holds {rows[tuple(wrong[0])]} at x{wrong[0]}, but inputs must be finite float32 numbers."
                )
        return torch.from_numpy(rows)

    def __repr__(self) -> str:
        return f"Client({self.folder.name} of {self.folder.parent.name!r})"
