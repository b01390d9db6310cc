"""A run's token: what a client keeps of a run is open to that run alone."""

import re

import pytest

from client_app import client as client_module
from client_app.store import Store, StoreError
from experiments.runtime.grid import LocalGrid
from federation.settings import SettingError
from runs.folder import RunFolder
from runs.round import RunError


def stores(home, folder):
    return {path: path.read_bytes() for path in sorted((home / "clients" / folder.name).rglob("*")) if path.is_file()}


def test_a_run_that_names_another_finds_its_stores_closed(run, home):
    """Another server says the first run's name: nothing of the stores changes, in memory or on disk."""
    folder = run({"strategy": "fedproto"})
    before = stores(home, folder)
    assert len(before) >= 4 * 3

    class Impostor(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                if "instruction" in message.content:
                    message.content["instruction"]["run"] = folder.name
            return super().push_messages(messages)

    for forget in (False, True):
        if forget:
            client_module._states.clear()
        with pytest.raises(RunError, match="whose secret this run does not know"):
            run({"strategy": "fedproto", "max-failed-rounds": 1}, grid=Impostor)
    assert stores(home, folder) == before
    # and the run itself goes on
    run({"strategy": "fedproto", "rounds": 3, "resume": str(folder)})


def test_no_store_and_no_record_of_the_run_holds_the_token(run, home):
    folder = run({"strategy": "fedproto"})
    token = RunFolder(folder).token
    assert re.fullmatch(r"[0-9a-f]{32}", token)
    assert (folder / "token").stat().st_mode & 0o077 == 0
    others = [path for path in folder.rglob("*") if path.is_file() and path.name != "token"]
    assert others
    for path in [*others, *stores(home, folder)]:
        assert token.encode() not in path.read_bytes()


def test_a_resume_without_the_token_is_refused_before_any_client_is_asked(run):
    folder = run({"strategy": "fedproto"})
    (folder / "token").unlink()
    with pytest.raises(SettingError, match=r"token cannot be read .*, and clients refuse a run without it"):
        run({"strategy": "fedproto", "rounds": 3, "resume": str(folder)})


def test_a_store_whose_description_is_gone_lets_nobody_in(tmp_path):
    store = Store(tmp_path / "run" / "0")
    store.admit("a")
    store.describe({"token": "x"})
    with pytest.raises(StoreError, match="whose secret"):
        store.admit("a")
    (store.folder / "client.json").rename(store.folder / "round-000001.safetensors")
    with pytest.raises(StoreError, match="cannot be read"):
        store.admit("a")


def test_tokens_are_no_text_of_any_kind(run):
    class Odd(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                if "instruction" in message.content:
                    message.content["instruction"]["token"] = "two\nlines"
            return super().push_messages(messages)

    with pytest.raises(RunError, match="`token` holds"):
        run({"max-failed-rounds": 1}, grid=Odd)
