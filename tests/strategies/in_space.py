"""What tests of methods in an encoder's space share: features, partitions of them, both halves without a run."""

import numpy as np
import torch
from torch.nn.functional import normalize

from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.encoder_space import directions
from protosphere.wire.arrays import Limits, decode, encode
from protosphere.wire.layouts import layout_lines
from protosphere.wire.payloads import Identity
from tests.strategies.needs import ASKED

K, D, N = 4, 5, 160


def samples(seed=0, n=N, classes=K, dim=D):
    """Features u (n, d) float64 of Gaussians with one covariance, and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    mixing = random.normal(size=(dim, dim))
    features = random.normal(size=(classes, dim))[labels] * 2 + random.normal(size=(n, dim)) @ mixing
    return torch.tensor(features), torch.tensor(labels)


def unit(features):
    """z = u / ||u||."""
    return normalize(features.double(), dim=1)


def partitions(labels, classes=K):
    """The same samples at one client, in turn, by class, and at clients one of whom has none: lists of indices."""
    every = torch.arange(len(labels))
    return {
        "one": [every],
        "in turn": [every[i::3] for i in range(3)],
        "by class": [every[labels == label] for label in range(classes)],
        "unevenly": [every[:7], every[:0], every[7:120], every[120:]],
        "one each": [every[i : i + 1] for i in every.tolist()],
    }


def halves(strategy, sizes=(5,) * 9, classes=K, dim=D, **settings):
    """The server half, which has met clients of so many samples, and the client half."""
    run = read_settings(ASKED[strategy] | {"feature-dim": dim} | settings)
    server = run.method.server(run.settings, run.options)
    objective = run.method.objective(run.settings, run.options, classes)
    lines = tuple(line for part, w in objective.shared(None).items() for line in layout_lines(part, w.layout))
    everything = tuple(range(classes))
    identities = {
        p: Identity(p, len(sizes), "net", rows=(size, 0, 0), layouts=lines, classes=everything)
        for p, size in enumerate(sizes)
    }
    server.meet(classes, dim, identities)
    return server, objective


def upload_of(objective, features, labels, round_number=1):
    """What a client that holds these samples sends."""
    return objective.upload(ClientState(None, encoded=lambda: (features, labels)), round_number)


def scores_of(objective, received, features):
    """What a client that has no samples of its own says of others by what came."""
    z = directions(features)
    return objective.encoded_scores(objective.complete(received, z[:0], torch.zeros(0, dtype=torch.int64)), z)


def over_the_wire(payload, objective, parts, classes=K, dim=D):
    """A payload as the other side has it."""
    layouts = {part: weights.layout for part, weights in objective.shared(None).items()}
    return decode(encode(payload, parts), parts, classes, dim, Limits(1e4, layouts))


def exchanged(strategy, partition, features, labels, classes=K, **settings):
    """What comes down of clients that hold these samples each, over the wire both ways; and the client half."""
    sizes = [len(indices) for indices in partition]
    server, objective = halves(strategy, sizes, classes, features.shape[1], **settings)
    exchange = read_settings(ASKED[strategy] | settings).exchange
    uploads = {}
    for client, indices in enumerate(partition):
        if not len(indices):
            continue
        upload = upload_of(objective, features[indices], labels[indices])
        uploads[client] = over_the_wire(upload, objective, exchange.up, classes, features.shape[1])
        assert server.contradiction(client, uploads[client]) == ""
    outcome = server.aggregate(uploads, {}, 1)
    down = over_the_wire(outcome.downloads[EVERYONE], objective, exchange.down, classes, features.shape[1])
    return down, objective, outcome
