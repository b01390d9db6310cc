"""What a run keeps of its prototypes."""

import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record import snapshots
from protosphere.record.snapshots import kept_rounds, newest, read_round, save, separation_of, snapshot
from protosphere.strategies.contract import EVERYONE
from tests.payloads import payload


def prototypes(labels, first):
    return payload(PrototypeSet(torch.tensor(labels), first + torch.arange(2.0 * len(labels)).view(-1, 2)))


UPLOADS = {7: prototypes([1, 2], 0.0), 3: prototypes([0], 10.0)}
SHARED = prototypes([0, 1, 2], 1.0)


def test_vectors_stand_by_client_and_both_kinds_have_their_scale():
    tensors, about = snapshot(UPLOADS, {EVERYONE: SHARED}, 10.0, 0.5)
    assert about == {"clients": 2, "left_out": 0, "scaled": 1}
    assert tensors["local/clients"].tolist() == [3, 7, 7]
    assert tensors["local/labels"].tolist() == [0, 1, 2]
    assert tensors["local/vectors"].tolist() == [[5, 5.5], [0, 0.5], [1, 1.5]]
    assert tensors["global/labels"].tolist() == [0, 1, 2]
    assert torch.equal(tensors["global/vectors"], 10 * SHARED["prototypes"].vectors)
    # what each gets of its own is no global one
    tensors, _ = snapshot(UPLOADS, {EVERYONE: SHARED, 3: SHARED}, 1.0)
    assert {name.split("/")[0] for name in tensors} == {"local"}


def test_of_mixtures_the_means_stay_and_have_no_distance():
    means = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    mixture = MixtureSet(torch.tensor([1, 1]), means, torch.ones(2, 2), torch.tensor([0.5, 0.5]))
    tensors, _ = snapshot({0: payload(mixture)}, {EVERYONE: payload(mixture)}, 1.0)
    assert tensors["local/labels"].tolist() == tensors["global/labels"].tolist() == [1, 1]
    assert torch.equal(tensors["local/vectors"], means)
    assert separation_of({EVERYONE: payload(mixture)}, 1.0) == {}


def test_what_takes_too_much_room_or_time_is_left_out(monkeypatch):
    found = separation_of({EVERYONE: SHARED}, 5.0)["separation"]
    assert (found["classes"], found["distance_min"]) == (3, pytest.approx(5 * 8**0.5))
    monkeypatch.setattr(snapshots, "MOST_PRODUCTS", 3 * 3 * 2 - 1)
    assert separation_of({EVERYONE: SHARED}, 1.0) == separation_of({}, 1.0) == {}
    monkeypatch.setattr(snapshots, "MOST_VALUES", 5)
    tensors, about = snapshot(UPLOADS, {}, 1.0)
    assert about == {"clients": 2, "left_out": 1}
    assert tensors["local/clients"].tolist() == [3]


def test_the_newest_round_is_kept_and_where_asked_every_round_that_was_not_run_again(tmp_path):
    def tensors_of(number):
        return {"global/labels": torch.arange(3), "global/vectors": torch.full((3, 2), 1e6 + number)}

    assert (newest(tmp_path), kept_rounds(tmp_path)) == (({}, {}), [])
    save(tmp_path, tensors_of(1), {"round": 1, "clients": 2})
    assert newest(tmp_path)[1] == {"round": 1, "clients": 2}
    assert kept_rounds(tmp_path) == []
    for number in (2, 3, 4):
        save(tmp_path, tensors_of(number), {"round": number}, every=True)
    save(tmp_path, tensors_of(9), {"round": 3}, every=True)
    assert kept_rounds(tmp_path) == [2, 3]
    assert torch.equal(read_round(tmp_path, 3)[0]["global/vectors"], tensors_of(9)["global/vectors"])
    assert torch.equal(newest(tmp_path)[0]["global/vectors"], tensors_of(9)["global/vectors"])
    snapshots._file(tmp_path, 2).write_text("x")
    with pytest.raises(SettingError, match=r"round-000002.* cannot be read"):
        read_round(tmp_path, 2)
