"""The ensemble (FedPAGR, section 4): the accuracy of all clients' mean class probabilities on one shared test set.

It needs a test set that all clients have, and its answers are not prototypes. It is therefore limited to simulations.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from protosphere.core.errors import DataError, SettingError
from protosphere.core.settings import Settings
from protosphere.data.partition.assignment import shared_test_set
from protosphere.wire.arrays import read_array
from protosphere.wire.checks import MessageError


def shared_labels(settings: Settings, clients: int, num_classes: int) -> Tensor | None:
    """The true labels (n,) int64, if `ensemble-every` asks for the measurement.

    Raises:
        SettingError: the server does not have the shared test set, or its classes are not those of the clients.
    """
    if not settings.ensemble_every:
        return None
    try:
        data, rows = shared_test_set(settings, clients)
    except DataError as error:
        raise SettingError(
            f"`ensemble-every` is {settings.ensemble_every}, but the server cannot open the shared test set: {error}"
        ) from None
    if len(data.class_names) != num_classes:
        raise SettingError(
            f"the shared test set has {len(data.class_names)} classes, but the clients have {num_classes}; give both "
            "the same classes.txt."
        )
    return torch.from_numpy(data.labels[rows])


def decode_answers(array: Array, rows: int, num_classes: int) -> Tensor:
    """A client's class probabilities for the shared test set, (rows, num_classes) float16.

    Raises:
        MessageError: they have a wrong type or shape, or are not finite.
    """
    values = read_array("probabilities", array)
    agreed = (rows, num_classes)
    if values.dtype != np.float16 or values.shape != agreed:
        raise MessageError(
            f"its probabilities are {values.dtype} of shape {values.shape}, float16 of {agreed} were agreed"
        )
    if not np.isfinite(values).all():
        raise MessageError("its probabilities are not finite")
    return torch.from_numpy(values)


def score(answers: Mapping[int, Tensor], labels: Tensor) -> dict[str, Any]:
    """Accuracy of the ensemble: argmax of the mean of the clients' probabilities.

    Args:
        answers: partition -> (n, K) float16; at least one.
        labels: the true labels (n,).

    Returns:
        accuracy, clients (number of answers) and rows.
    """
    # in a fixed order, so that the sum does not depend on the order of arrival
    ordered = [answers[partition] for partition in sorted(answers)]
    total = torch.zeros(ordered[0].shape, dtype=torch.float64)
    for probabilities in ordered:
        total += probabilities
    right = int((total.argmax(dim=1) == labels).sum())
    return {"accuracy": right / len(labels), "clients": len(answers), "rows": len(labels)}
