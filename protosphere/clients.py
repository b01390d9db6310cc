"""A trained client: what its private model says of inputs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data import DataError
from protosphere.start import ours_first
from serving.predict import WITH_PROBABILITIES, Trained, inputs_of, open_trained

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a client says of n inputs.

    Attributes:
        rule: the prediction rule.
        labels: (n,) int64.
        names: n class names.
        probabilities: (n, K) float64, rows that add up to 1; None by a rule that has none.
        scores: (n, K) float64, higher is better; minus infinity for a class that the rule does not know.
    """

    rule: str
    labels: Array
    names: tuple[str, ...]
    probabilities: Array | None
    scores: Array


class Client:
    """A trained client: its private model, without the rows that it was trained on.

    Attributes:
        folder: PROTOSPHERE_HOME/clients/<run>/<partition>, which holds it.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu"):
        self.folder = Path(folder)
        with ours_first():
            self._trained: Trained = open_trained(self.folder, device)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._trained.model

    @property
    def module(self) -> torch.nn.Module:
        """The model itself, in evaluation mode; its inputs are what `input_shape` says, scaled as in training."""
        return self._trained.state.module

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input: (C, H, W) of images, (F,) of rows of numbers, (tokens,) of texts."""
        return tuple(self._trained.transform.shape)

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names in label order."""
        return self._trained.class_names

    @property
    def rules(self) -> tuple[str, ...]:
        """The prediction rules that it can apply."""
        return self._trained.rules()

    def predict(self, x: "Array | torch.Tensor | Sequence[str | os.PathLike[str]]", rule: str = "") -> Predictions:
        """Classify inputs.

        >>> client = run.client(0)
        >>> client.input_shape
        (2,)
        >>> found = client.predict(np.array([[0.5, 0.5], [-1.0, 0.0]]), rule="classifier")
        >>> found.labels.shape, found.probabilities.shape
        ((2,), (2, 6))

        Args:
            x: rows as the data set stores them, before any scaling: (n, C, H, W) whole numbers of images, (n, F)
                numbers; or files of images or of texts; or, for a model that reads texts, texts as `str` (a file of
                them is a Path).
            rule: "" for the client's own.

        Raises:
            SettingError: the rule is none that this client can apply, or its model takes other inputs.
            DataError: rows of another shape, or a file that cannot be read.
        """
        chosen = self._trained.chosen(rule)
        scores = self._trained.scores(chosen, self._inputs(x, chosen)).double().cpu()
        labels = scores.argmax(dim=1).numpy()
        return Predictions(
            rule=chosen,
            labels=labels,
            names=tuple(self.class_names[label] for label in labels.tolist()),
            probabilities=torch.softmax(scores, dim=1).numpy() if chosen in WITH_PROBABILITIES else None,
            scores=scores.numpy(),
        )

    def _inputs(self, x: "Array | torch.Tensor | Sequence[str | os.PathLike[str]]", rule: str) -> torch.Tensor:
        if not isinstance(x, np.ndarray | torch.Tensor):
            texts = self._trained.tokens is not None
            listed: Sequence[str | os.PathLike[str]] = [x] if isinstance(x, str | os.PathLike) else x
            return inputs_of(
                self._trained, rule, [each if texts and isinstance(each, str) else Path(each) for each in listed]
            )
        rows = torch.as_tensor(x)
        shape = self.input_shape
        if tuple(rows.shape[1:]) != shape:
            raise DataError(
                f"x has the shape {tuple(rows.shape)}, but this client's model takes (n, {', '.join(map(str, shape))})."
            )
        # of an image whose channels were scaled to 1 everything would be black
        if len(shape) == 3 and rows.is_floating_point():
            raise DataError(
                f"x holds {rows.dtype}, but images are stored as whole numbers of their full scale, which the client "
                "scales itself; give them as they were before scaling."
            )
        return rows if len(shape) == 3 or self._trained.tokens is not None else rows.to(torch.float32)

    def __repr__(self) -> str:
        return f"Client({self.folder.name} of {self.folder.parent.name!r})"
