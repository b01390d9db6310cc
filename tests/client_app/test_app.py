"""The ClientApp as Flower calls it: a message and a context in, a message out; and what a site notes of them."""

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from protosphere.client_app import client as client_module
from protosphere.client_app.app import app
from protosphere.client_app.client import Client
from protosphere.client_app.site import over_ray
from protosphere.core.home import OTHER_HOME, stores
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.strategies.contract import PullObjective
from protosphere.wire.messages import decode_identity, decode_report, encode_instruction
from protosphere.wire.payloads import Instruction
from tests.payloads import lone, payload

QUICK = known_settings() | {"max-samples": 400, "feature-dim": 8, "models": "tiny_perceptron", "device": "cpu"}
QUICK["strategy"] = "protonorm"


@pytest.fixture
def call():
    """call(message type, records, settings, **node config): the reply."""
    LocalGrid({}, [])  # gives this process the identity without which Flower builds no message

    def answer(message_type, records=None, settings=None, node=None):
        node = {"partition-id": 1, "num-partitions": 4} if node is None else node
        message = Message(RecordDict() if records is None else records, 77, message_type)
        return app(message, Context(1, 77, node, RecordDict(), QUICK | (settings or {})))

    return answer


def refusal(reply):
    """The words of a reply that is an error."""
    assert not reply.has_content()
    assert reply.error.code == 2
    return reply.error.reason


def instruction(number=1):
    return encode_instruction(Instruction("a-run", number))


def test_the_three_kinds_of_message_are_answered(call):
    identity = decode_identity(call(MessageType.QUERY).content)
    assert (identity.partition, identity.partitions, identity.problem) == (1, 4, "")
    trained, upload = decode_report(call(MessageType.TRAIN, instruction()).content)
    assert (trained.partition, trained.round) == (1, 1)
    assert trained.training.steps > 0
    assert upload["prototypes.vectors"].shape[1] == 8
    evaluated, upload = decode_report(call(MessageType.EVALUATE, instruction(1)).content)
    assert (evaluated.partition, evaluated.round, evaluated.training, upload) == (1, 1, None, None)
    assert evaluated.evaluation.correct
    assert trained.evaluation is None
    assert trained.seconds > trained.training.seconds > 0


WHOLE = {"partition-id": 2, "num-partitions": 4}


@pytest.mark.parametrize(
    ("node", "settings", "partition", "named"),
    [
        ({}, {}, -1, "partition-id=None"),
        (WHOLE | {"partition-id": "two"}, {}, -1, "partition-id"),
        ({"partition-id": 2}, {}, 2, "num-partitions=None"),
        (WHOLE | {"partition-id": 9}, {}, 9, "partition 9"),
        (WHOLE | {"model": "tiny_cn"}, {}, 2, "'tiny_cn'"),
        (WHOLE, {"min-samples": 200}, 2, "min-samples = 200"),
    ],
)
def test_a_client_that_cannot_take_part_says_why_and_cannot_train(call, node, settings, partition, named):
    identity = decode_identity(call(MessageType.QUERY, settings=settings, node=node).content)
    assert identity.problem.startswith(f"client {'?' if partition < 0 else partition}: ")
    assert named in identity.problem
    assert (identity.partition, identity.rows) == (partition, (0, 0, 0))
    reply = call(MessageType.TRAIN, instruction(), settings, node)
    assert named in (decode_report(reply.content)[0].problem if reply.has_content() else refusal(reply))
    assert not reply.has_content() or "arrays" not in reply.content


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": [1, 2]}, "`rounds`"),
        ({"nonesuch": ["x"]}, "unknown setting `nonesuch`"),
        ({"own-settings": "[" * 200_000}, "`own-settings`"),
        ({"threads": 100_000}, "`threads`"),
        ({"strategy": b"fedproto"}, "`strategy`"),
    ],
)
def test_settings_that_come_with_a_message_are_refused_in_words(call, settings, words):
    sent = RecordDict({"settings": ConfigRecord(settings)})
    assert words in decode_identity(call(MessageType.QUERY, sent).content).problem
    records = instruction()
    records["settings"] = ConfigRecord(settings)
    for message_type in (MessageType.TRAIN, MessageType.EVALUATE):
        assert words in refusal(call(message_type, records))


@pytest.mark.parametrize("message_type", [MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE])
def test_a_defect_reaches_the_person_who_waits_for_the_client(call, monkeypatch, capsys, message_type):
    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(client_module, "evaluate", broken)
    monkeypatch.setattr(client_module, "train", broken)
    monkeypatch.setattr(Client, "identity", broken)
    asked = message_type == MessageType.QUERY
    reply = call(message_type, None if asked else instruction())
    said = decode_identity(reply.content).problem if asked else refusal(reply)
    assert said == "client 1: RuntimeError: out of memory"
    assert "Traceback" in capsys.readouterr().err


def test_a_prototype_that_the_format_cannot_hold_costs_the_upload_alone(call, monkeypatch):
    whole = PullObjective.upload
    held = []

    def grown(self, state, round_number):
        prototypes = lone(whole(self, state, round_number))
        held.extend(prototypes.labels.tolist())
        vectors = prototypes.vectors.clone()
        vectors[1, 0] = 7e4
        return payload(prototypes.with_vectors(vectors))

    settings = {"wire-dtype": "float16"}
    with monkeypatch.context() as patch:
        patch.setattr(PullObjective, "upload", grown)
        reply = call(MessageType.TRAIN, encode_instruction(Instruction("a-run", 1)), settings)
    report, upload = decode_report(reply.content)
    assert upload is None
    assert report.problem.startswith(f"client 1: a prototype cannot be sent (class {held[1]}): ")
    assert report.training.steps > 0
    # what was trained is kept, and is where the next round starts
    reply = call(MessageType.TRAIN, encode_instruction(Instruction("a-run", 2, None, 1)), settings)
    report, upload = decode_report(reply.content)
    assert (report.problem, upload["prototypes.vectors"].numpy().dtype) == ("", "float16")


def test_what_a_method_keeps_in_its_objective_is_gone_with_the_message(call, monkeypatch):
    """It would depend on how long a process lives: on workers, engines, and on whether a run was cut."""
    counts = []

    def receive(self, state, received, round_number):
        counts.append(getattr(self, "count", 0))
        self.count = counts[-1] + 1

    monkeypatch.setattr(PullObjective, "receive", receive)
    for number in (1, 2):
        assert not call(MessageType.TRAIN, instruction(number)).has_error()
    assert counts == [0, 0]


# --- over Ray -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_over_ray_a_home_that_is_not_the_runs_is_refused_and_left_as_it_is(call, home, kind, monkeypatch):
    monkeypatch.setattr(client_module, "over_ray", lambda: True)
    refused = call(kind, instruction())
    assert refused.error.code == OTHER_HOME
    assert refused.error.reason.startswith("client 1: ")
    assert str(home) in refused.error.reason
    assert not stores("a-run").exists()
    assert not call(MessageType.QUERY).has_error()
    stores("a-run").mkdir(parents=True)
    assert not call(kind, instruction()).has_error()


@pytest.mark.parametrize(
    ("here", "initialised", "over"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_ray_has_the_clients_unless_this_process_itself_has(monkeypatch, here, initialised, over):
    """A comparison's task runs in a worker of Ray's, with the clients in its own process."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr("protosphere.client_app.site._here", here)
    monkeypatch.setattr(ray, "is_initialized", lambda: initialised)
    assert over_ray() is over
