"""FedProto against plain loops: every aggregation, the loss, and what leaves a client."""

import math
import statistics

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from prototypes.prototype_set import PrototypeSet
from strategies.contract import EVERYONE, ClientState

K, D = 6, 4
ALLOWED = {"strategy": "fedproto", "disclose-class-counts": True}


def uploads(seed=0, clients=7, leave_out=()):
    """partition -> its prototypes; client p holds some of the classes, and 5 is nobody's."""
    rng = np.random.default_rng(seed)
    made = {}
    for partition in range(clients):
        held = [label for label in range(5) if (partition + label) % 3 and label not in leave_out]
        vectors = torch.from_numpy(rng.standard_normal((len(held), D)).astype(np.float32) * 3 + 1)
        counts = torch.from_numpy(rng.integers(1, 50, len(held)))
        made[partition] = PrototypeSet(torch.tensor(held), vectors, counts)
    return made


def rows_of(sets, label):
    """[(vector as floats, count)] of a class over the clients that hold it."""
    found = []
    for prototypes in sets.values():
        for row, held in enumerate(prototypes.labels.tolist()):
            if held == label:
                found.append((prototypes.vectors[row].double().tolist(), int(prototypes.counts[row])))
    return found


def mean(rows):
    return [sum(vector[i] for vector, _ in rows) / len(rows) for i in range(D)]


def weighted(rows):
    total = sum(count for _, count in rows)
    return [sum(vector[i] * count for vector, count in rows) / total for i in range(D)]


def median(rows):
    return [statistics.median(vector[i] for vector, _ in rows) for i in range(D)]


def trimmed(rows):
    cut = math.floor(0.45 * len(rows))
    kept = [sorted(vector[i] for vector, _ in rows)[cut : len(rows) - cut] for i in range(D)]
    return [sum(values) / len(values) for values in kept]


def geometric(rows):
    points = np.array([vector for vector, _ in rows])
    found = minimize(
        lambda point: np.linalg.norm(points - point, axis=1).sum(), mean(rows), method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000},
    )  # fmt: skip
    return found.x


NAIVE = {"mean": mean, "weighted": weighted, "median": median, "trimmed-mean": trimmed, "geometric-median": geometric}


@pytest.mark.parametrize("how", NAIVE)
def test_aggregation_is_the_plain_loops(halves, how):
    sets = uploads()
    strategy = halves(ALLOWED | {"fedproto.aggregation": how, "fedproto.trim": 0.45}, K, D).server
    outcome = strategy.aggregate(sets, {}, 1)
    download = outcome.downloads[EVERYONE]
    assert set(outcome.downloads) == {EVERYONE}
    assert download.labels.tolist() == [0, 1, 2, 3, 4]
    assert download.counts is None
    assert download.vectors.dtype == torch.float32
    for row, label in enumerate(download.labels.tolist()):
        expected = NAIVE[how](rows_of(sets, label))
        np.testing.assert_allclose(download.vectors[row].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", NAIVE)
def test_a_class_nobody_reports_keeps_its_prototype(halves, how):
    strategy = halves(ALLOWED | {"fedproto.aggregation": how}, K, D).server
    first = strategy.aggregate(uploads(0), {}, 1)
    second = strategy.aggregate(uploads(1, leave_out=(2, 4)), first.state, 2)
    old, new = first.downloads[EVERYONE], second.downloads[EVERYONE]
    assert new.labels.tolist() == [0, 1, 2, 3, 4]
    for label in range(5):
        assert torch.equal(new.vectors[label], old.vectors[label]) == (label in (2, 4))


# --- what leaves a client ---------------------------------------------------------------------------------


def test_counts_are_uploaded_for_the_weighted_mean_alone(halves):
    own = uploads()[1]
    for how in NAIVE:
        both = halves(ALLOWED | {"fedproto.aggregation": how}, K, D)
        sent = both.objective.upload(ClientState(torch.nn.Identity(), prototypes=own), 3)
        assert (sent.counts is not None) == (how == "weighted")
        assert both.run.exchange.counts == (how == "weighted")
        assert torch.equal(sent.vectors, own.vectors)
