"""FedGH: the server's head against gradient steps by hand, its start, and its life across rounds."""

import numpy as np
import torch
from torch import nn

from protosphere.models.split import SplitModel
from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.weights import head_layout
from protosphere.wire.layouts import layout_lines
from protosphere.wire.payloads import Identity
from tests.payloads import payloads
from tests.strategies.sets import class_means

K, D = 4, 3


def halves_of(**settings):
    run = read_settings({"strategy": "fedgh", "feature-dim": D} | settings)
    server = run.method.server(run.settings, run.options)
    lines = tuple(layout_lines("head", head_layout(D, K)))
    server.meet(K, D, {p: Identity(p, 2, "net", rows=(5, 0, 0), layouts=lines) for p in range(2)})
    return server, run.method.objective(run.settings, run.options, K)


def uploads():
    return class_means({0: (0, 1, 3), 1: (1, 2)}, D, seed=1)


def test_the_head_takes_the_steps_of_the_cross_entropy_on_all_prototypes():
    """All five fit one batch, so that the order does not matter."""
    server, objective = halves_of(**{"fedgh.server-epochs": 3})
    model = objective.build(SplitModel(nn.Linear(2, D), D, K), 9)
    weight, bias = (p.detach().double().numpy() for p in (model.classifier.weight, model.classifier.bias))
    sent = uploads()
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
