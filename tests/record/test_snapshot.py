"""What a run keeps of its prototypes: as they came up and went down, within bounds."""

import pytest
import torch

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record import snapshots as snapshot_module
from protosphere.record.snapshots import separation_of, snapshot
from protosphere.strategies.contract import EVERYONE
from tests.payloads import payload


def prototypes(labels, first):
    return payload(PrototypeSet(torch.tensor(labels), first + torch.arange(2.0 * len(labels)).view(-1, 2)))


UPLOADS = {7: prototypes([1, 2], 0.0), 3: prototypes([0], 10.0)}
SHARED = prototypes([0, 1, 2], 1.0)


def test_vectors_stand_by_client_and_targets_are_scaled():
    tensors, about = snapshot(UPLOADS, {EVERYONE: SHARED}, 10.0)
    assert about == {"clients": 2, "left_out": 0}
    assert tensors["local/clients"].tolist() == [3, 7, 7]
    assert tensors["local/labels"].tolist() == [0, 1, 2]
    assert tensors["local/vectors"].tolist() == [[10, 11], [0, 1], [2, 3]]
    assert tensors["global/labels"].tolist() == [0, 1, 2]
    assert torch.equal(tensors["global/vectors"], 10 * SHARED["prototypes"].vectors)


def test_prototypes_of_ones_own_are_no_global_ones():
    tensors, _ = snapshot(UPLOADS, {EVERYONE: SHARED, 3: SHARED}, 1.0)
    assert {name.split("/")[0] for name in tensors} == {"local"}
    assert separation_of({EVERYONE: SHARED, 3: SHARED}, 1.0) == {}


def test_what_takes_too_much_room_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(snapshot_module, "MOST_VALUES", 5)
    tensors, about = snapshot(UPLOADS, {}, 1.0)
    assert about == {"clients": 2, "left_out": 1}
    assert tensors["local/clients"].tolist() == [3]
    monkeypatch.setattr(snapshot_module, "MOST_VALUES", 1)
    assert snapshot(UPLOADS, {}, 1.0) == ({}, {"clients": 2, "left_out": 2})


def test_of_mixtures_the_means_stay_and_have_no_distance():
    means = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    mixture = MixtureSet(torch.tensor([1, 1]), means, torch.ones(2, 2), torch.tensor([0.5, 0.5]))
    tensors, _ = snapshot({0: payload(mixture)}, {EVERYONE: payload(mixture)}, 1.0)
    assert tensors["local/labels"].tolist() == tensors["global/labels"].tolist() == [1, 1]
    assert torch.equal(tensors["local/vectors"], means)
    assert separation_of({EVERYONE: payload(mixture)}, 1.0) == {}


def test_distances_are_those_of_the_targets():
    found = separation_of({EVERYONE: SHARED}, 5.0)["separation"]
    assert found["classes"] == 3
    assert found["distance_min"] == pytest.approx(5 * 8**0.5)
    assert separation_of({EVERYONE: prototypes([4], 0.0)}, 1.0) == separation_of({}, 1.0) == {}


def test_uploads_on_a_scale_of_their_own_are_brought_beside_the_targets():
    tensors, about = snapshot(UPLOADS, {EVERYONE: SHARED}, 1.0, 0.5)
    assert about == {"clients": 2, "left_out": 0, "scaled": 1}
    assert tensors["local/vectors"].tolist() == [[5, 5.5], [0, 0.5], [1, 1.5]]


def test_more_than_can_be_measured_in_a_round_are_not(monkeypatch):
    monkeypatch.setattr(snapshot_module, "MOST_PRODUCTS", 3 * 3 * 2)
    assert separation_of({EVERYONE: SHARED}, 1.0)
    monkeypatch.setattr(snapshot_module, "MOST_PRODUCTS", 3 * 3 * 2 - 1)
    assert separation_of({EVERYONE: SHARED}, 1.0) == {}
