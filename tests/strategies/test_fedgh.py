"""FedGH: the server's head against gradient steps by hand, its start, and its life across rounds."""

import numpy as np
import torch
from torch import nn

from protosphere.models.split import SplitModel
from protosphere.strategies.contract import EVERYONE, ClientState
from tests.payloads import payloads
from tests.strategies.kin import halves_of, meet
from tests.strategies.sets import class_means

K, D = 4, 3


def test_the_head_takes_the_steps_of_the_cross_entropy_on_all_prototypes():
    """All five fit one batch, so that the order does not matter."""
    server, objective = halves_of("fedgh", {"fedgh.server-epochs": 3}, K, D)
    model = objective.build(SplitModel(nn.Linear(2, D), D, K), 9)
    meet(server, dict.fromkeys(range(2), objective.shared(model)), num_classes=K, dim=D)
    weight, bias = (p.detach().double().numpy() for p in (model.classifier.weight, model.classifier.bias))
    sent = class_means({0: (0, 1, 3), 1: (1, 2)}, D, seed=1)
    rows = np.concatenate([upload.vectors.double().numpy() for upload in sent.values()])
    wanted = np.eye(K)[[0, 1, 3, 1, 2]]
    for _ in range(3):
        scores = np.exp(rows @ weight.T + bias)
        apart = (scores / scores.sum(axis=1, keepdims=True) - wanted) / len(rows)
        weight, bias = weight - 0.01 * apart.T @ rows, bias - 0.01 * apart.sum(axis=0)
    head = server.aggregate(payloads(sent), {}, 1).downloads[EVERYONE]["head"].tensors
    np.testing.assert_allclose(head["classifier.weight"], weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(head["classifier.bias"], bias, rtol=1e-5, atol=1e-6)
    # and it is what a client predicts with
    state = ClientState(model)
    arrived = objective.evaluation_state(state, server.aggregate(payloads(sent), {}, 1).downloads[EVERYONE])
    assert torch.equal(arrived.module.classifier.bias, head["classifier.bias"])
