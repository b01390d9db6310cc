"""A run's token: what a client keeps of a run is open to that run alone."""

import re

import pytest

from client_app import client as client_module
from client_app.store import Store, StoreError
from federation.settings import SettingError
from federation.wire.payloads import Instruction
from runs.folder import RunFolder


def ask(number, token):
    return Instruction("a-run", number, True, trained=number - 1, token=token)


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
