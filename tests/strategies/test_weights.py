"""The family that shares weights: means by naive loops, groups, layouts on the wire."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from torch import nn

from protosphere.models.split import SplitModel
from protosphere.prototypes.weights import STATISTICS, flat
from protosphere.strategies.contract import ClientState
from protosphere.wire.checks import MessageError
from protosphere.wire.layouts import read_layouts
from protosphere.wire.payloads import Identity
from tests.strategies.kin import D, K, halves_of, meet


def module(seed, width=5):
    torch.manual_seed(seed)
    extractor = nn.Sequential(
        OrderedDict(backbone=nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width)), projection=nn.Linear(width, D))
    )
    made = SplitModel(extractor, D, K)
    made(torch.randn(6, 2))  # running statistics that are not the initial ones
    return made


def upload(objective, seed, width=5):
    return objective.upload(ClientState(module(seed, width)), 1)


def met(name, widths=(5, 5, 5), rows=(10, 20, 70), **settings):
    """A server that knows its clients, and what they upload."""
    server, objective = halves_of(name, settings)
    uploads = {p: upload(objective, seed=p, width=width) for p, width in enumerate(widths)}
    return meet(server, uploads, rows, [f"net{width}" for width in widths]), uploads


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_mean_is_that_of_loops(weighting):
    rows = (10, 20, 70)
    server, uploads = met("fedavg", rows=rows)
    server.weighting = weighting
    outcome = server.aggregate(uploads, {}, 1)
    omega = rows if weighting == "samples" else (1, 1, 1)
    for part, weights in outcome.downloads[0].items():
        for name, tensor in weights.tensors.items():
            naive = np.zeros(tuple(tensor.shape))
            for partition, payload in uploads.items():
                naive = naive + omega[partition] * payload[part].tensors[name].double().numpy() / sum(omega)
            np.testing.assert_allclose(tensor.numpy(), naive, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["median", "trimmed-mean", "geometric-median"])
def test_robust_means_are_those_of_all_values_at_once(how):
    server, uploads = met("fedavg", (5,) * 5, rows=(10, 20, 30, 40, 50), **{"weights.aggregation": how})
    outcome = server.aggregate(uploads, {}, 1)
    for part, weights in outcome.downloads[0].items():
        rows = torch.stack([flat(payload[part]) for payload in uploads.values()]).numpy()
        values_of_part = flat(weights).numpy()
        if how == "geometric-median":
            # statistics decide nothing: their scale is the data's
            counted = np.concatenate(
                [np.full(t.numel(), not n.endswith(STATISTICS)) for n, t in weights.tensors.items()]
            )
            assert np.isfinite(values_of_part).all()
            offsets = (rows - values_of_part)[:, counted]
            distances = np.linalg.norm(offsets, axis=1, keepdims=True)
            # no step makes the sum of distances smaller
            assert np.linalg.norm((offsets / distances).sum(axis=0)) < 1e-3 * len(rows)
            continue
        naive = np.median(rows, axis=0) if how == "median" else trim_mean(rows, 0.2)
        np.testing.assert_allclose(values_of_part, naive, rtol=1e-6, atol=1e-7)


def test_what_travels_is_what_the_method_shares():
    names = {
        name: {part: set(weights.tensors) for part, weights in upload(halves_of(name)[1], 0).items()}
        for name in ("fedavg", "lg-fedavg", "fedper")
    }
    floating = {name for name, tensor in module(0).state_dict().items() if tensor.is_floating_point()}
    head = {"classifier.weight", "classifier.bias"}
    assert set.union(*names["fedavg"].values()) == floating
    assert (names["lg-fedavg"], names["fedper"]) == ({"head": head}, {"extractor": floating - head})
    two = upload(halves_of("fedper", {"fedper.personal-layers": 2})[1], 0)
    assert set(two) == {"backbone"}
    assert not any("projection" in name for name in two["backbone"].tensors)
    own = upload(halves_of("fedavg", {"share-buffers": "own"})[1], 0)
    assert not any("running" in name for weights in own.values() for name in weights.tensors)


def test_architectures_are_averaged_apart_and_a_head_over_all():
    server, uploads = met("fedavg", widths=(5, 7, 5))
    outcome = server.aggregate(uploads, {}, 1)
    assert set(outcome.downloads) == {0, 1}
    assert [server.download(p, outcome.downloads, {}, 2, True) for p in range(3)] == [0, 1, 0]
    for part in ("extractor", "head"):
        assert torch.equal(flat(outcome.downloads[1][part]), flat(uploads[1][part]).float().double())
    server, uploads = met("lg-fedavg", widths=(5, 7, 5))
    assert set(server.aggregate(uploads, {}, 1).downloads) == {0}


def test_a_group_that_did_not_answer_keeps_its_weights():
    server, uploads = met("fedavg", widths=(5, 7, 5))
    outcome = server.aggregate({0: uploads[0]}, {}, 1)
    assert (set(outcome.downloads), outcome.keeps) == ({0}, True)


def test_what_came_replaces_the_own_and_arrived_changes_nothing():
    _, objective = halves_of("fedper")
    mine, came = ClientState(module(0)), upload(objective, 1)
    before = {name: tensor.clone() for name, tensor in mine.module.state_dict().items()}
    arrived = objective.evaluation_state(mine, came)
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.module.state_dict().items())
    assert objective.evaluation_state(mine, None) is mine
    objective.receive(mine, came, 2)
    after = mine.module.state_dict()
    for name, tensor in arrived.module.state_dict().items():
        assert torch.equal(tensor, after[name])
        if name.startswith("classifier"):
            assert torch.equal(after[name], before[name]), "personal layers stay"
    assert torch.equal(after["extractor.projection.weight"], came["extractor"].tensors["extractor.projection.weight"])


# --- layouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        *(([line], "no `part/name:shape`") for line in ("head/w", "head/w:0x3", "head/w:-1", "w:3", "head/w\n:3")),
        *((["head/w:3", line], "not unique and ascending") for line in ("head/w:3", "head/a:3")),
        (["head/w:100000x100000"], "more than 268435456 values"),
        ([f"head/w{i:05}:1" for i in range(5000)], "5000 tensors, at most 4096"),
    ],
)
def test_layouts_that_make_no_sense_are_refused(lines, words):
    with pytest.raises(MessageError, match=words):
        read_layouts(lines)


# --- whole runs ---------------------------------------------------------------------------------------------------


def test_a_group_keeps_its_name_where_its_first_client_is_absent_at_a_resume():
    """Else its weights, which lie under that name, would be lost, and training would start anew."""
    one, other = ("head/w:3x4",), ("head/w:3x5",)
    identities = {p: Identity(p, 9, "m", rows=(5, 1, 1), layouts=own) for p, own in enumerate((one, other, one))}
    server, _ = halves_of("fedavg", {"min-clients": 2})
    server.meet(K, D, identities)
    assert [server.group(p) for p in (0, 1, 2)] == [0, 1, 0]

    resumed, _ = halves_of("fedavg", {"min-clients": 2})
    resumed.group_names = dict(server.group_names)
    resumed.meet(K, D, {p: identities[p] for p in (1, 2)})
    assert [resumed.group(p) for p in (1, 2)] == [1, 0]

    # whoever is looked at and stays outside names no group
    stranger = Identity(7, 9, "m", rows=(5, 1, 1), layouts=("head/w:3x6",))
    resumed.try_meeting(K, D, {1: identities[1], 7: stranger})
    assert resumed.group_names == server.group_names
