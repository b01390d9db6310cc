"""A run that is stopped while a SuperNode receives a message of it, by the function of Flower's that receives."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from deploy.supernode import cleaning


def received(pull_and_store, stopped_at):
    """What is done with the SuperNode's notes where the run is stopped at one of the calls to the SuperLink."""
    message = SimpleNamespace(metadata=SimpleNamespace(message_id="m", run_id=7, group_id="", message_type="train"))
    state, store = MagicMock(), MagicMock()
    store.preregister.return_value = ["an object"]
    calls = {name: MagicMock(return_value=b"content") for name in ("pull_object", "confirm_message_received")}
    if stopped_at:
        calls[stopped_at].side_effect = RunNotRunningException
    notes = {"state": state, "object_store": store, "node_config": {}, "trusted_entities": None}
    others = {"receive": lambda: (message, MagicMock()), "get_run": MagicMock(), "get_fab": MagicMock()}
    run = pull_and_store(**notes, **others, **calls)
    assert state.create_task.called
    return run, state.finish_task.called, state.delete_messages.called, store.delete.called


@pytest.mark.parametrize("stopped_at", ["pull_object", "confirm_message_received"])
def test_nothing_is_left_of_a_message_that_could_not_be_received(stopped_at):
    flowers = start_client_internal._pull_and_store_message
    assert received(flowers, stopped_at) == (None, False, False, False), (
        "Flower cleans up by itself: supernode.py can go"
    )
    assert received(cleaning(flowers), stopped_at) == (None, True, True, True)
    assert received(cleaning(flowers), "") == (7, False, False, False)


def test_flower_calls_what_is_replaced_by_its_name():
    """Of the installed version; CI runs this with the oldest and the newest that we know."""
    names = start_client_internal.start_client_internal.__code__.co_names
    assert "_pull_and_store_message" in names
    assert callable(flower_supernode)
