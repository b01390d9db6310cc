"""The ensemble of FedPAGR's tables at a client: its class probabilities for the shared test set of a simulation."""

import torch
from flwr.app import Array
from torch import Tensor

from protosphere.client_app.evaluate import features_of
from protosphere.core.settings import Settings
from protosphere.data.client_data import Rows, Transform, rows_of
from protosphere.data.from_settings import shared_test_set
from protosphere.models.text import Tokens
from protosphere.strategies.contract import ClientState, Objective


def ensemble_answer(
    settings: Settings,
    clients: int,
    objective: Objective,
    state: ClientState,
    transform: Transform,
    tokens: Tokens | None,
) -> Array | None:
    """What crosses of class probabilities, (n, K) float16; None where the method can predict no class yet.

    Args:
        tokens: what the client's model reads texts with; None for other samples.

    Raises:
        DataError: the shared test set cannot be read.
    """
    device = next(state.module.parameters()).device
    rows = rows_of(*shared_test_set(settings, clients), device, tokens)
    probabilities = predict(objective, state, rows, transform)
    return None if probabilities is None else Array(probabilities.cpu().to(torch.float16).numpy())


@torch.no_grad()
def predict(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """Class probabilities of all rows, (n, K); None where the method can predict no class yet."""
    return objective.probabilities(state, features_of(objective, state, rows, transform))
