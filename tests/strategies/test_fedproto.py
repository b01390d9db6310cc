"""FedProto: the mean that its setting names, what stays of a class that nobody reports, and what leaves a client."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protosphere.prototypes.aggregation import AGGREGATIONS, aggregate
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import EVERYONE, ClientState
from tests.payloads import lone, payload, payloads

K, D = 6, 4
ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize(("holders", "trim", "cut"), [(2, 0.1, 0), (3, 0.1, 1), (9, 0.1, 1), (9, 0.3, 2), (3, 0.0, 0)])
def test_a_trimmed_mean_cuts_what_the_settings_page_says(halves, holders, trim, cut):
    server = halves(ALLOWED | {"fedproto.aggregation": "trimmed-mean", "fedproto.trim": trim}, 1, 2).server
    values = [2.0**holder for holder in range(holders)]
    sets = {holder: PrototypeSet(torch.tensor([0]), torch.full((1, 2), value)) for holder, value in enumerate(values)}
    mean = lone(server.aggregate(payloads(sets), {}, 1).downloads[EVERYONE]).vectors
    assert mean[0].tolist() == pytest.approx(2 * [np.mean(values[cut : holders - cut])])
    assert "from three holders on one at each end at least, unless it is 0" in (ROOT / "docs/settings.md").read_text()


def test_counts_are_uploaded_for_the_weighted_mean_alone(halves):
    own = uploads()[1]
    for how in AGGREGATIONS:
        both = halves(ALLOWED | {"fedproto.aggregation": how}, K, D)
        sent = lone(both.objective.upload(ClientState(torch.nn.Identity(), prototypes=own), 3))
        assert (sent.counts is not None) == both.run.exchange.counts == (how == "weighted")
        assert torch.equal(sent.vectors, own.vectors)


@pytest.mark.parametrize("strategy", ["fedproto", "fedtgp", "tinyproto-ft"])
def test_gamma_scales_a_client_s_targets_and_not_what_crosses(halves, strategy):
    """ProtoNorm's Table 5. Without it the very prototypes that came are the targets."""
    prefix = "fedproto" if strategy == "fedproto" else "fedtgp"
    received = PrototypeSet(torch.tensor([1, 4]), torch.eye(2, D))
    state = ClientState(torch.nn.Identity())
    usual = halves({"strategy": strategy}, K, D)
    assert usual.objective.targets(state, payload(received)).vectors is received.vectors
    both = halves({"strategy": strategy, f"{prefix}.gamma": 1.5}, K, D)
    assert torch.equal(both.objective.targets(state, payload(received)).vectors, 1.5 * torch.eye(2, D))
    assert torch.equal(received.vectors, torch.eye(2, D))
    assert both.objective.targets(state, None) is None
    assert (usual.server.scales[0], both.server.scales[0]) == (1.0, 1.5)
    sent = [lone(h.server.aggregate(payloads(uploads()), {}, 1).downloads[EVERYONE]).vectors for h in (usual, both)]
    assert torch.equal(*sent)
