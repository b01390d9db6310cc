"""A small network, a batch and a method's halves, for the tests of methods that share weights."""

import torch
from torch import nn

from protosphere.models import build
from protosphere.models.split import split
from protosphere.prototypes.weights import Weights
from protosphere.strategies import read_settings
from protosphere.strategies.contract import Batch, ClientState
from protosphere.wire.layouts import layout_lines
from protosphere.wire.payloads import Identity

K, D = 3, 4


def network(norm=True):
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)] if norm else [nn.Conv2d(1, 2, 3)]
    return split(nn.Sequential(*layers, nn.ReLU()), (1, 5, 5), D, K)


def halves_of(name, settings=None, num_classes=K, dim=D):
    """The server's and the client's half of a method."""
    run = read_settings({"strategy": name, "feature-dim": dim} | (settings or {}))
    return run.method.server(run.settings, run.options), run.method.objective(run.settings, run.options, num_classes)


def objective_of(name, **settings):
    return halves_of(name, {"learning-rate": 0.1} | settings)[1]


def lines_of_layouts(parts):
    """What an identity says of the parts of weights that a client shares."""
    return tuple(line for part, weights in parts.items() for line in layout_lines(part, weights.layout))


def meet(server, uploads, rows=(10, 20, 70), models=("net",) * 9, num_classes=K, dim=D):
    """The server, which knows clients of so many training samples that share what these uploads hold."""
    identities = {}
    for partition, upload in uploads.items():
        lines = lines_of_layouts({part: upload[part] for part in upload if isinstance(upload[part], Weights)})
        # who trains on few rows has many to be judged by, so that weights by all rows are others
        counts = (rows[partition], 90 - rows[partition], 5)
        identities[partition] = Identity(
            partition, len(uploads), models[partition], classes=(0,), rows=counts, layouts=lines
        )
    server.meet(num_classes, dim, identities)
    return server


def batch(rows=7):
    random = torch.Generator().manual_seed(5)
    return Batch(torch.randn(rows, 1, 5, 5, generator=random), torch.arange(rows) % K)


def client_of(name, model="tiny_perceptron", **settings):
    """A method's client half for rows of five values, and a client as it begins."""
    settings = {"models": "tiny_perceptron"} | settings
    objective = halves_of(name, settings)[1]
    return objective, ClientState(objective.build(build(model, (5,), D, K, 3), 3))


def rows_of_five(rows=7):
    random = torch.Generator().manual_seed(5)
    return Batch(torch.randn(rows, 5, generator=random), torch.arange(rows) % K)


def received_of(objective, module, shift):
    """A payload of the module's shared tensors, each moved by `shift`."""
    shared = objective.shared(module)
    return {p: Weights({n: t + shift for n, t in part.tensors.items()}) for p, part in shared.items()}
