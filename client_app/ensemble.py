"""A client's part of the ensemble in FedPAGR's tables: its class probabilities for a simulation's shared test set."""

import torch
from flwr.app import Array
from torch import Tensor, softmax

from protosphere.client_app.evaluate import features_of, method_scores
from protosphere.data.client_data import Rows, Transform
from protosphere.strategies.consensus import ConsensusObjective
from protosphere.strategies.contract import ClientState, Objective


def ensemble_answer(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Array | None:
    """The class probabilities to send, (n, K) float16; None if the method cannot predict any class yet."""
    probabilities = predict(objective, state, rows, transform)
    return None if probabilities is None else Array(probabilities.cpu().to(torch.float16).numpy())


@torch.no_grad()
def predict(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """Class probabilities of all samples, (n, K); None if the method cannot predict any class yet."""
    z = features_of(objective, state, rows, transform)
    if isinstance(objective, ConsensusObjective):
        return objective.ensemble_probabilities(state, z)
    return softmax(method_scores(objective, state, z)["classifier"].float(), dim=1)
