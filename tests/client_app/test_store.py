"""A client's state on disk: what is written comes back to the bit, and a failing or cut write loses nothing."""

import os
import re
import time
from multiprocessing import get_context

import pytest
import torch

from protosphere.client_app import store as store_module
from protosphere.client_app.evaluate import measure
from protosphere.client_app.store import Store, StoreError
from protosphere.client_app.train import train
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import ClientState
from tests.payloads import payload
from tests.waiting import PATIENCE


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "clients" / "a-run" / "3")


def state_with(value, **more):
    """A state that a test can tell by one number."""
    module = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(module.weight, value)
    return ClientState(module, **more)


def value_in(store, round_number):
    """The number of the state that this round made."""
    state = state_with(float("nan"))
    store.load_into(state, round_number, torch.device("cpu"))
    return state.module.weight[0, 0].item()


def rounds(store):
    return sorted(path.name for path in store.folder.glob("*.safetensors"))


def test_two_generations_are_kept_and_the_newest_is_found(store):
    assert store.generations() == []
    assert store.newest_before(1) is None
    for number in (0, 1, 2, 9, 10, 11):
        store.save(number, state_with(number))
    assert rounds(store) == ["round-000010.safetensors", "round-000011.safetensors"]
    assert store.generations() == [11, 10]
    assert [value_in(store, number) for number in (10, 11)] == [10, 11]


def test_a_state_that_the_server_has_seen_must_be_there(store):
    with pytest.raises(StoreError, match="does not hold the model of round 3"):
        store.newest_before(4, trained=3)
    store.save(2, state_with(2))
    with pytest.raises(StoreError, match="does not hold the model of round 3"):
        store.newest_before(4, trained=3)
    store.save(3, state_with(3))
    assert store.newest_before(4, trained=3) == 3
    store.save(4, state_with(4))  # trained in time, answered too late
    assert store.newest_before(5, trained=3) == 4
    assert store.newest_before(4, trained=3) == 3


def test_a_round_starts_from_before_it_and_what_the_server_forgot_is_deleted(store):
    for number in (4, 5):
        store.save(number, state_with(number))
    assert store.newest_before(6) == 5
    # a server that went back too far is told so, and nothing is deleted
    with pytest.raises(StoreError, match=r"round 4 .*only of 4, 5"):
        store.newest_before(4)
    # an evaluation that comes late deletes nothing
    assert store.newest_before(5, trained=4, going_back=False) == 4
    assert rounds(store) == ["round-000004.safetensors", "round-000005.safetensors"]
    assert store.newest_before(5) == 4
    assert value_in(store, 4) == 4
    assert rounds(store) == ["round-000004.safetensors"]


def test_a_failing_save_leaves_the_old_generations_and_no_rubbish(store, monkeypatch):
    for number in (1, 2):
        store.save(number, state_with(number))
    before = sorted(path.name for path in store.folder.iterdir())

    def full_disk(path, *_):
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "write_tensors", full_disk)
    with pytest.raises(StoreError, match=r"cannot be written \(No space left on device\); free space there"):
        store.save(3, state_with(3))
    assert sorted(path.name for path in store.folder.iterdir()) == before
    assert value_in(store, store.generations()[0]) == 2


def test_a_write_that_a_crash_cut_short_is_never_taken_for_a_state(store):
    store.save(1, state_with(1.0))
    for name in (f"round-000002.{os.getpid()}.tmp", "round-000002.999999.tmp", "received.999999.tmp"):
        (store.folder / name).write_bytes(b"half of it")
    assert store.newest_before(3) == 1
    store.save(2, state_with(2.0))
    # nobody else would ever take them away
    assert list(store.folder.glob("*.tmp")) == []
    store.save(3, state_with(3.0))
    assert value_in(store, store.generations()[0]) == 3
    assert rounds(store) == ["round-000002.safetensors", "round-000003.safetensors"]


def test_a_state_with_another_byte_or_without_its_last_page_is_refused(store):
    """safetensors itself reads such a file as other weights."""
    store.save(1, ClientState(torch.nn.Linear(100, 100)))
    path = store.folder / "round-000001.safetensors"
    whole = path.read_bytes()
    tail = whole[:-4096] + bytes(4096)
    flipped = whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]
    for damaged in (tail, flipped, bytes(len(whole))):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=re.escape(f"{path} cannot be read (")):
            store.load_into(ClientState(torch.nn.Linear(100, 100)), store.generations()[0], torch.device("cpu"))
    path.write_bytes(whole)
    store.load_into(ClientState(torch.nn.Linear(100, 100)), store.generations()[0], torch.device("cpu"))


def test_all_of_a_state_comes_back_to_the_bit(store, parts):
    made = parts({"momentum": 0.9, "optimizer-state": "persistent"}, norm=True)
    train(made.objective, made.state, made.data, ("a", "stream"), 1)
    made.state.extra = {"a/name/with/slashes": torch.tensor([1.5, -0.0]), "scalar": torch.tensor(7)}
    store.save(1, made.state)
    fresh = parts({"momentum": 0.9, "optimizer-state": "persistent"}, norm=True, seed=5).state
    store.load_into(fresh, 1, torch.device("cpu"))
    assert set(made.state.module.state_dict()) >= {"extractor.1.running_var", "extractor.1.num_batches_tracked"}
    same(fresh.module.state_dict(), made.state.module.state_dict())
    same(vars(fresh.prototypes), vars(made.state.prototypes))
    same({"": fresh.covariance}, {"": made.state.covariance})
    same(fresh.extra, made.state.extra)
    assert len(made.state.optimiser) == 8  # a momentum for each weight and bias
    same(fresh.optimiser, made.state.optimiser)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert found[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_a_load_forgets_what_the_state_held_before(store, parts):
    """The stored one is of a client without training rows: it has no prototypes."""
    made = parts(train=())
    measure(made.objective, made.state, made.data)
    store.save(0, made.state)
    dirty = parts(seed=5).state
    dirty.extra, dirty.optimiser = {"old": torch.ones(1)}, {"train/0/step": torch.ones(1)}
    dirty.covariance = torch.eye(2)
    store.load_into(dirty, 0, torch.device("cpu"))
    assert (dirty.extra, dirty.optimiser, dirty.covariance, dirty.prototypes) == ({}, {}, None, None)


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(store, monkeypatch):
    store.save(1, state_with(1.0))

    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store_module.os, "listdir", refused)
    with pytest.raises(StoreError, match=r"a-run/3 cannot be read \(Permission denied\); make it readable"):
        store.newest_before(2)


def test_a_damaged_description_is_one_sentence(store):
    store.describe({"model": "tiny_cnn", "class_names": ["ant", "bee"]})
    path = store.folder / "client.json"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError, match=r"client\.json cannot be read .* from a copy"):
        store.description()


def test_of_downloads_that_are_sent_once_the_one_before_is_kept(store):
    sent = {made: payload(PrototypeSet(torch.tensor([0]), torch.full((1, 2), float(made)))) for made in (1, 2, 3)}
    for made in (1, 2, 2, 3):
        store.save_received(sent[made], {}, made)
    for made in (2, 3):
        assert torch.equal(store.load_held(made)["prototypes"].vectors, sent[made]["prototypes"].vectors)
    with pytest.raises(StoreError, match="does not hold what round 1 has made"):
        store.load_held(1)
    assert torch.equal(store.load_received()[0]["prototypes"].vectors, sent[3]["prototypes"].vectors)


def test_two_processes_of_a_site_never_share_a_store(store):
    def hold(held):
        with Store(store.folder).lock(0):
            held.set()
            time.sleep(PATIENCE)

    # a fork, for what takes long is to load torch
    fork = get_context("fork")
    held = fork.Event()
    other = fork.Process(target=hold, args=(held,))
    other.start()
    assert held.wait(PATIENCE)
    with pytest.raises(StoreError, match="another process of this site still uses"), store.lock(0.1):
        pytest.fail("both hold it")
    # it dies in the middle
    other.kill()
    other.join()
    with store.lock(10):
        store.save(1, state_with(1.0))
    assert store.generations() == [1]
