"""Where Ray has the clients: a worker whose home is not the run's takes no part."""

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from protosphere.client_app import app as app_module
from protosphere.client_app import client as client_module
from protosphere.client_app.site import over_ray
from protosphere.core.home import OTHER_HOME, stores
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from tests.client_app.conftest import QUICK

TRAIN = encode_instruction(Instruction("a-run", 1))


@pytest.fixture
def answer(monkeypatch):
    """answer(kind, records, over Ray): what the ClientApp says."""
    LocalGrid({}, [])

    def say(kind, records, over_ray=True):
        monkeypatch.setattr(client_module, "over_ray", lambda: over_ray)
        node = {"partition-id": 1, "num-partitions": 4}
        return app_module.app(Message(records, 77, kind), Context(1, 77, node, RecordDict(), known_settings() | QUICK))

    return say


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_over_ray_a_home_that_is_not_the_runs_is_refused_and_left_as_it_is(answer, home, kind):
    refused = answer(kind, TRAIN)
    assert refused.error.code == OTHER_HOME
    assert refused.error.reason.startswith("client 1: ")
    assert str(home) in refused.error.reason
    assert not stores("a-run").exists()
    stores("a-run").mkdir(parents=True)
    assert not answer(kind, TRAIN).has_error()


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
