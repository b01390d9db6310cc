"""FeSEM: who joins which centre, and what becomes of centres."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

from protosphere.models.split import SplitModel
from protosphere.strategies.contract import ClientState
from tests.strategies.kin import halves_of, meet

K, D = 2, 3


def met(clusters, clients, seed=0):
    server, objective = halves_of("fesem", {"fesem.clusters": clusters, "seed": seed}, K, D)
    uploads = dict.fromkeys(range(clients), upload(objective, 0.0))
    return meet(server, uploads, (10,) * clients, num_classes=K, dim=D), objective


def upload(objective, value, statistic=0.0):
    """A client's weights, all of one value but a running mean."""
    extractor = nn.Sequential(OrderedDict(backbone=nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, D))))
    module = SplitModel(extractor, D, K)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.fill_(value)
        module.extractor.backbone[1].running_mean.fill_(statistic)
    return objective.upload(ClientState(module), 1)


def values(outcome):
    """The centres by their (one) value."""
    return [float(centre[-1]) for centre in outcome.state["centres"]]


def joined(outcome):
    return outcome.state["joined"].tolist()


@pytest.mark.parametrize("seed", range(2))
def test_centres_are_the_means_of_those_that_lie_near(seed):
    server, objective = met(clusters=2, clients=6, seed=seed)
    sent = {0: 0.0, 1: 0.2, 2: 10.0, 3: 0.4, 4: 10.4, 5: 0.6}
    outcome = server.aggregate({p: upload(objective, value) for p, value in sent.items()}, {}, 1)
    assert sorted(values(outcome)) == pytest.approx([0.3, 10.2])
    own = {p: outcome.downloads[server.download(p, outcome.downloads, outcome.state, 2, True)] for p in sent}
    assert all(float(own[p]["head"].tensors["classifier.bias"][0]) == pytest.approx(10.2) for p in (2, 4))
    assert all(float(own[p]["head"].tensors["classifier.bias"][0]) == pytest.approx(0.3) for p in (0, 1, 3, 5))
    assert sorted(outcome.figures["cluster_sizes"].split()) == ["2", "4"]


def test_nobody_s_centre_stays_and_who_was_not_heard_of_keeps_its_own():
    server, objective = met(clusters=2, clients=5)
    first = server.aggregate({p: upload(objective, value) for p, value in enumerate([0.0, 10.0, 0.2])}, {}, 1)
    later = server.aggregate({0: upload(objective, 1.0)}, first.state, 2)
    assert sorted(values(later)) == pytest.approx([1.0, 10.0])
    assert joined(later)[1:3] == joined(first)[1:3]
    # never heard of: with the most
    assert joined(later)[3:] == [-1, -1]
    assert server.download(4, later.downloads, later.state, 3, True) == joined(later)[0]
    assert server.download(1, later.downloads, later.state, 3, True) != joined(later)[0]


def test_running_statistics_draw_nobody():
    server, objective = met(clusters=2, clients=4)
    sent = {0: upload(objective, 0.0, 500.0), 1: upload(objective, 0.1), 2: upload(objective, 5.0, 500.0)}
    outcome = server.aggregate(sent | {3: upload(objective, 5.1)}, {}, 1)
    found = joined(outcome)
    assert found[0] == found[1] != found[2] == found[3]


def test_there_are_no_more_centres_than_clients():
    server, objective = met(clusters=3, clients=2)
    outcome = server.aggregate({p: upload(objective, 10.0 * p) for p in range(2)}, {}, 1)
    assert sorted(values(outcome)) == [0.0, 10.0]
    assert "`fesem.clusters` is 3, but there are only 2 clients" in server.notices[0]
    assert met(clusters=2, clients=2)[0].notices == ()


@pytest.mark.parametrize("later", [4, 1])
def test_centres_that_were_chosen_stay_where_clients_come_or_go(later):
    server, objective = met(clusters=3, clients=2)
    identity = replace(server.identities[0], partitions=4)

    def meet(clients):
        server.meet(server.num_classes, server.dim, {p: replace(identity, partition=p) for p in range(clients)})

    meet(2)
    first = server.aggregate({p: upload(objective, 10.0 * p) for p in range(2)}, {}, 1)
    meet(later)
    second = server.aggregate({p: upload(objective, 10.0 * (p % 2)) for p in range(later)}, first.state, 2)
    assert sorted(values(second)) == [0.0, 10.0]
