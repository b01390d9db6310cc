"""A run's token: what a client keeps of a run is open to that run alone."""

import re

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from protosphere.client_app import app as app_module
from protosphere.client_app import client as client_module
from protosphere.client_app.site import over_ray
from protosphere.client_app.store import Store, StoreError
from protosphere.core.errors import SettingError
from protosphere.core.home import OTHER_HOME, mark
from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder
from protosphere.strategies import known_settings
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from tests.client_app.conftest import QUICK


def ask(number, token):
    return Instruction("a-run", number, trained=number - 1, token=token)


def stores(home, run):
    return {path: path.read_bytes() for path in sorted((home / "clients" / run).rglob("*")) if path.is_file()}


@pytest.mark.parametrize("forget", [False, True])
def test_a_run_that_names_another_finds_its_stores_closed(client, home, forget):
    """Another server says the first run's name: nothing of the stores changes, in memory or on disk."""
    client().train(ask(1, "ours"))
    before = stores(home, "a-run")
    assert len(before) >= 3
    if forget:
        client_module._states.clear()
    in_memory = dict(client_module._states)
    for how in ("train", "evaluate"):
        with pytest.raises(StoreError, match="whose secret this run does not know"):
            getattr(client(), how)(ask(2, "theirs"))
    assert stores(home, "a-run") == before
    assert client_module._states == in_memory
    # and the run itself goes on
    assert client().train(ask(2, "ours")).training is not None


def test_no_store_and_no_record_of_the_run_holds_the_token_without_which_no_client_is_asked(run, home):
    folder = run({"strategy": "fedproto", "rounds": 1})
    token = RunFolder(folder).token
    assert re.fullmatch(r"[0-9a-f]{32}", token)
    assert (folder / "token").stat().st_mode & 0o077 == 0
    others = [path for path in folder.rglob("*") if path.is_file() and path.name != "token"]
    assert others
    kept = stores(home, folder.name)
    for path in [*others, *kept]:
        assert token.encode() not in path.read_bytes()
    (folder / "token").unlink()
    with pytest.raises(SettingError, match="token cannot be read"):
        run({"strategy": "fedproto", "rounds": 3, "resume": str(folder)})
    assert stores(home, folder.name) == kept


def test_a_store_whose_description_is_gone_lets_nobody_in(tmp_path):
    store = Store(tmp_path / "run" / "0")
    store.admit("a")
    store.describe({"token": "x"})
    with pytest.raises(StoreError, match="whose secret"):
        store.admit("a")
    (store.folder / "client.json").rename(store.folder / "round-000001.safetensors")
    with pytest.raises(StoreError, match="cannot be read"):
        store.admit("a")


# --- where Ray has the clients ----------------------------------------------------------------------------------

TRAIN = encode_instruction(ask(1, "ours"))
LAST = encode_instruction(ask(1, "ours"))


@pytest.fixture
def answer(monkeypatch):
    """answer(kind, records, over Ray): what the ClientApp says."""
    LocalGrid({}, [])

    def say(kind, records, over_ray=True):
        monkeypatch.setattr(client_module, "over_ray", lambda: over_ray)
        node = {"partition-id": 1, "num-partitions": 4}
        return app_module.app(Message(records, 77, kind), Context(1, 77, node, RecordDict(), known_settings() | QUICK))

    return say


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (MessageType.TRAIN, TRAIN),
        (MessageType.EVALUATE, LAST),
    ],
)
def test_over_ray_a_home_without_the_runs_token_is_refused_and_left_as_it_is(answer, home, kind, records):
    mark("a-run", "theirs")
    before = stores(home, "a-run")
    refused = answer(kind, records)
    assert refused.error.code == OTHER_HOME
    assert refused.error.reason.startswith("client 1: ")
    assert str(home) in refused.error.reason
    assert stores(home, "a-run") == before
    mark("a-run", "ours")
    assert not answer(kind, records).has_error()


def test_a_site_needs_no_home_that_others_see(answer):
    reply = answer(MessageType.TRAIN, TRAIN, over_ray=False)
    assert not any(record.get("problem") for record in reply.content.config_records.values())


def test_over_ray_a_query_asks_for_no_home(answer):
    assert not answer(MessageType.QUERY, RecordDict()).has_error()


@pytest.mark.parametrize(
    ("here", "initialised", "over"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_ray_has_the_clients_unless_this_process_itself_has(monkeypatch, here, initialised, over):
    """A comparison's task runs in a worker of Ray's, with the clients in its own process."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr("protosphere.client_app.site._here", here)
    monkeypatch.setattr(ray, "is_initialized", lambda: initialised)
    assert over_ray() is over
