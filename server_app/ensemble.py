"""The ensemble (FedPAGR, section 4): all clients' mean class probabilities on one shared test set, scored.

A benchmark's measurement: it needs a test set that everybody has, and its answers are no prototypes. So it is one of
simulations alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protosphere.core.errors import DataError, SettingError
from protosphere.core.settings import Settings
from protosphere.data.from_settings import shared_test_spec
from protosphere.data.shared_test_set import SharedLabels, shared_labels


def shared_test_set(settings: Settings, clients: int, num_classes: int) -> SharedLabels | None:
    """The right answers, where `ensemble-every` asks for the measurement.

    Raises:
        SettingError: the server does not have the shared test set, or one of other classes than the clients'.
    """
    if not settings.ensemble_every:
        return None
    try:
        shared = shared_labels(shared_test_spec(settings, clients))
    except DataError as error:
        raise SettingError(
            f"`ensemble-every` is {settings.ensemble_every}, but the server cannot open the shared test set: {error}"
        ) from None
    if shared.num_classes != num_classes:
        raise SettingError(
            f"the shared test set has {shared.num_classes} classes, but the clients have {num_classes}; give both the "
            "same classes.txt."
        )
    return shared


def score(answers: Mapping[int, Tensor], shared: SharedLabels) -> dict[str, Any]:
    """Accuracy of the ensemble: argmax of the mean of the clients' probabilities.

    Args:
        answers: by partition, each (n, K) float16; at least one.

    Returns:
        accuracy, clients (how many answered) and rows.
    """
    total = torch.zeros(len(shared.labels), shared.num_classes, dtype=torch.float64)
    # in a fixed order: the sum must not depend on who came first
    for partition in sorted(answers):
        total += answers[partition]
    right = int((total.argmax(dim=1) == shared.labels).sum())
    return {"accuracy": right / len(shared.labels), "clients": len(answers), "rows": len(shared.labels)}
