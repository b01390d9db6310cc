"""A client of the digits, and the parts that one is made of: objective, state, data."""

from types import SimpleNamespace

import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from protosphere.client_app import client as client_module
from protosphere.client_app.app import new_client
from protosphere.data.client_data import ClientData, InputTransform, Rows
from protosphere.models.split import SplitModel
from protosphere.strategies import read_settings
from protosphere.strategies.contract import ClientState
from tests.steps import ONE_EPOCH

CLASSES, DIM, INPUTS = 4, 5, 6
QUICK = {"max-samples": 400, "feature-dim": 8, "models": "tiny_perceptron", "strategy": "fedproto", "device": "cpu"}
QUICK |= ONE_EPOCH


def rows_of(labels, seed):
    """Rows whose inputs depend on the class, so that there is something to learn."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.tensor(labels, dtype=torch.int64)
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(99))
    return Rows(centres[labels] + 0.5 * torch.randn(len(labels), INPUTS, generator=random), labels)


def network(norm):
    """With batch normalisation a batch's features depend on the mode and on its other rows."""
    layers = [nn.Linear(INPUTS, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Tanh(), nn.Linear(8, DIM)]
    return SplitModel(nn.Sequential(*layers), DIM, CLASSES)


@pytest.fixture
def parts():
    """parts(settings, train=, test=, validation=, norm=False): settings, objective, state, data."""

    def make(
        settings=None,
        train=(0, 1, 2) * 7,
        test=(0, 1, 2, 3) * 5,
        validation=(0, 1, 2) * 3,
        norm=False,
        seed=0,
    ):
        run = read_settings(ONE_EPOCH | {"feature-dim": DIM, "batch-size": 4, "learning-rate": 0.1} | (settings or {}))
        objective = run.method.objective(run.settings, run.options, CLASSES)
        torch.manual_seed(seed)
        state = ClientState(objective.build(network(norm), seed))
        transform = InputTransform(2.0, (0.5,) * INPUTS, (1.5,) * INPUTS, (INPUTS,))
        names = tuple("abcd")
        data = ClientData(rows_of(train, 1), rows_of(test, 2), rows_of(validation, 3), names, transform)
        return SimpleNamespace(settings=run.settings, objective=objective, state=state, data=data)

    return make


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No state in memory from other tests; and this process is a simulation's, as the in-process grid says."""
    client_module._states.clear()
    monkeypatch.setattr("protosphere.client_app.site._here", True)


@pytest.fixture
def client():
    """client(partition, settings, **node config): made anew, as for every message."""

    def make(partition=0, settings=None, **node):
        node = {"partition-id": partition, "num-partitions": 4} | {k.replace("_", "-"): v for k, v in node.items()}
        return new_client(Context(1, 2, node, RecordDict(), QUICK | (settings or {})))

    return make
