"""FedProto: the mean that its setting names, what stays of a class that nobody reports, what gamma scales."""

from dataclasses import replace

import pytest
import torch

from protosphere.prototypes.aggregation import AGGREGATIONS, aggregate
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import EVERYONE, ClientState
from tests.payloads import lone, payload, payloads
from tests.strategies.sets import class_means, in_part

K, D = 6, 4
ALLOWED = {"strategy": "fedproto", "disclose-class-counts": True}


def uploads(seed=0, leave_out=()):
    """Of seven clients, each with some of the classes; 5 is nobody's."""
    return class_means(in_part(7, [label for label in range(5) if label not in leave_out]), D, seed, 1.0, counted=True)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_the_mean_is_the_one_that_is_named_and_a_class_nobody_reports_keeps_its_prototype(halves, how):
    """tests/prototypes has each mean by loops."""
    server = halves(ALLOWED | {"fedproto.aggregation": how, "fedproto.trim": 0.25}, K, D).server
    sets, later = uploads(0), uploads(1, leave_out=(2, 4))
    first = server.aggregate(payloads(sets), {}, 1)
    second = server.aggregate(payloads(later), first.state, 2)
    old, new = lone(first.downloads[EVERYONE]), lone(second.downloads[EVERYONE])
    assert set(first.downloads) == {EVERYONE}
    assert old.labels.tolist() == new.labels.tolist() == [0, 1, 2, 3, 4]
    assert old.counts is None
    assert torch.equal(old.vectors, aggregate(list(sets.values()), how, trim=0.25).vectors)
    assert torch.equal(new.vectors[[2, 4]], old.vectors[[2, 4]])
    assert torch.equal(new.vectors[[0, 1, 3]], aggregate(list(later.values()), how, trim=0.25).vectors)
    others = [aggregate(list(sets.values()), other, trim=0.25).vectors for other in AGGREGATIONS if other != how]
    assert not any(torch.equal(old.vectors, other) for other in others)


@pytest.mark.parametrize("strategy", ["fedproc", "tinyproto-fp"])
def test_a_class_that_nobody_reports_keeps_its_prototype_with_means_of_other_methods_too(halves, strategy):
    server = halves({"strategy": strategy}, K, D).server
    first = server.aggregate(payloads(uploads(0)), {}, 1)
    second = server.aggregate(payloads(uploads(1, leave_out=(2, 4))), first.state, 2)
    old, new = (lone(outcome.downloads[EVERYONE]).vectors for outcome in (first, second))
    assert [torch.equal(new[label], old[label]) for label in range(5)] == [False, False, True, False, True]


# the setting, and its default
GAMMA = {
    "fedproto": ("fedproto.gamma", 1.0),
    "fedtgp": ("fedtgp.gamma", 1.0),
    "tinyproto-ft": ("fedtgp.gamma", 1.0),
    "protonorm": ("protonorm.gamma", 10.0),
}


@pytest.mark.parametrize("strategy", GAMMA)
def test_gamma_scales_a_client_s_targets_and_not_what_crosses(halves, strategy):
    """ProtoNorm's Table 5."""
    setting, default = GAMMA[strategy]
    received = PrototypeSet(torch.tensor([1, 4]), torch.eye(2, D))
    state = ClientState(torch.nn.Identity())
    sent = []
    for gamma in (default, 7.5):
        both = halves({"strategy": strategy, setting: gamma}, K, D)
        targets = both.objective.targets(state, payload(received))
        outcome = both.server.aggregate(payloads(uploads()), {}, 1)
        sent.append(lone(outcome.downloads[EVERYONE]).vectors)

        assert torch.equal(targets.vectors, gamma * torch.eye(2, D))
        assert targets.labels.tolist() == [1, 4]
        assert both.objective.targets(state, None) is None
        assert outcome.scales == (gamma, 1.0)
    assert torch.equal(received.vectors, torch.eye(2, D))
    assert torch.equal(*sent)


HELD = {0: (0, 1), 1: (1, 2), 2: (2, 3), 3: (3,)}
ROWS = 20  # training rows of a scripted client


def test_counts_are_held_against_the_rows_of_the_roster(federation):
    def tamper(partition, number, kind, report):
        if kind != "train":
            return report
        sent = lone(report.payload)
        counts = torch.full((len(sent),), ROWS // len(sent))
        if (partition, number) == (0, 2):
            counts[0] += 1
        return replace(report, payload=payload(replace(sent, counts=counts)))

    group = federation(4, tamper=tamper, held=HELD)
    line = group.start(ALLOWED | {"fedproto.aggregation": "weighted"}).folder.lines()[2]

    assert "do not add up to its 20 training samples" in line["problems"]["0"]
    assert (line["training"]["valid"], line["training"]["dropped"]) == (3, 1)
