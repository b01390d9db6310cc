"""The ensemble of FedPAGR's tables at a client: its class probabilities for the shared test set of a simulation."""

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from protosphere.client_app.evaluate import features_of
from protosphere.data.client_data import Rows, Transform
from protosphere.data.shared_test_set import SharedTestSpec, shared_rows
from protosphere.models.text import Tokens
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.ensemble import encode_answers


def ensemble_answer(
    spec: SharedTestSpec, objective: Objective, state: ClientState, transform: Transform, tokens: Tokens | None
) -> ArrayRecord | None:
    """The record `ensemble` of a reply; None where the method can predict no class yet.

    Args:
        tokens: what the client's model reads texts with; None for other samples.

    Raises:
        DataError: the shared test set cannot be read.
    """
    device = next(state.module.parameters()).device
    rows, fingerprint = shared_rows(spec, device, tokens)
    probabilities = predict(objective, state, rows, transform)
    return None if probabilities is None else encode_answers(probabilities, fingerprint)


@torch.no_grad()
def predict(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """Class probabilities of all rows, (n, K); None where the method can predict no class yet."""
    return objective.probabilities(state, features_of(objective, state, rows, transform))
