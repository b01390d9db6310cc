"""Clients of made-up samples, ready to train in float64."""

from dataclasses import dataclass

import torch
from torch import nn
from torchvision.ops import StochasticDepth

from protosphere.client_app.store import lay_out, new_state
from protosphere.client_app.train import train
from protosphere.data.client_data import ClientData, InputTransform, Rows
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies import read_settings
from protosphere.strategies.contract import ClientState, Objective
from tests.payloads import payload

CLASSES, DIM = 4, 6


@dataclass(frozen=True)
class Job:
    """A client that is ready to train: the arguments of `train`."""

    objective: Objective
    state: ClientState
    data: ClientData
    stream: tuple
    round_number: int

    def alone(self):
        return train(self.objective, self.state, self.data, self.stream, self.round_number)


class Double(InputTransform):
    """To float64."""

    def __call__(self, inputs):
        return super().__call__(inputs).double()


def job_of(client, rows=16, model="tiny_perceptron", shape=(5,), targets=True, **settings):
    """A client in float64 with a model, and rows, of its own."""
    own = {"strategy": "fedproto", "models": model, "feature-dim": DIM, "batch-size": 4, "shared-init": False}
    run = read_settings(own | {"momentum": 0.9, "weight-decay": 0.01, "optimizer-state": "persistent"} | settings)
    objective = run.method.objective(run.settings, run.options, CLASSES)
    random = torch.Generator().manual_seed(client)
    data = Rows(torch.randn(rows, *shape, generator=random), torch.randint(CLASSES, (rows,), generator=random))
    transform = Double(1.0, (0.0,) * shape[0], (1.0,) * shape[0], shape)
    state = new_state(objective, model, shape, client, torch.device("cpu"))
    state.module.double().eval()  # as an evaluation on arrival leaves it
    for layer in state.module.modules():
        if isinstance(layer, nn.Dropout | StochasticDepth):
            layer.p = 0.0
    if targets:
        vectors = torch.randn(CLASSES - 1, DIM, generator=random, dtype=torch.float64)
        lay_out(objective, state, payload(PrototypeSet(torch.arange(CLASSES - 1), vectors)), torch.device("cpu"))
    stream = (0, "client", client, "round", 2)
    return Job(objective, state, ClientData(data, data, data, tuple("abcd"), transform), stream, 2)
