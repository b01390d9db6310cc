"""The ClientApp as Flower calls it: a message and a context in, a message out."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from threadpoolctl import threadpool_info

from client_app import client as client_module
from client_app.app import app
from client_app.client import Client
from experiments.runtime.grid import LocalGrid
from federation.wire.codec import Codec
from federation.wire.messages import decode_identity, decode_report, encode_instruction
from federation.wire.payloads import Instruction
from models.split import SplitModel
from prototypes.prototype_set import PrototypeSet
from strategies import known_settings
from strategies.contract import PullObjective

CODEC = Codec(10, 8)
QUICK = known_settings() | {"max-samples": 400, "feature-dim": 8, "models": "tiny_perceptron", "device": "cpu"}


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


def instruction(number=1, evaluate=True):
    return encode_instruction(Instruction("a-run", number, evaluate), CODEC)


def test_the_three_kinds_of_message_are_answered(call):
    identity = decode_identity(call(MessageType.QUERY).content)
    assert (identity.partition, identity.partitions, identity.problem) == (1, 4, "")
    trained, upload = decode_report(call(MessageType.TRAIN, instruction()).content, CODEC)
    assert (trained.partition, trained.round) == (1, 1)
    assert trained.training.steps > 0
    assert upload["vectors"].shape[1] == 8
    evaluated, upload = decode_report(call(MessageType.EVALUATE, instruction(2)).content, CODEC)
    assert (evaluated.partition, evaluated.round, evaluated.training, upload) == (1, 2, None, None)
    assert evaluated.evaluation.correct
    assert trained.seconds > trained.training.seconds > 0


@pytest.mark.parametrize(
    ("node", "partition", "sentence"),
    [
        ({}, -1, "client ?: this SuperNode's --node-config has partition-id=None"),
        (
            {"partition-id": "two", "num-partitions": 4},
            -1,
            "client ?: this SuperNode's --node-config has partition-id",
        ),
        ({"partition-id": 2.5, "num-partitions": 4}, -1, "client ?: this SuperNode's --node-config has partition-id"),
        ({"partition-id": 2}, 2, "client 2: this SuperNode's --node-config has num-partitions=None"),
        ({"partition-id": 9, "num-partitions": 4}, 9, "client 9: partition 9 does not exist"),
        ({"partition-id": 2, "num-partitions": 4, "model": "tiny_cn"}, 2, "client 2: model 'tiny_cn' is unknown"),
        ({"partition-id": 2, "num-partitions": 4, "data-path": "/nowhere"}, 2, "client 2: "),
    ],
    ids=["nothing", "a word", "a fraction", "no number of partitions", "too high", "model", "path"],
)
def test_a_client_that_cannot_take_part_says_why(call, node, partition, sentence):
    identity = decode_identity(call(MessageType.QUERY, node=node).content)
    assert identity.problem.startswith(sentence)
    assert identity.partition == partition
    assert identity.rows == (0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"device": "cuda:99"}, "`device`"),
        ({"models": "tiny_perceptron", "dataset": "/no/such/folder"}, "/no/such/folder"),
        ({"learning-rate": -1.0}, "`learning-rate`"),
        ({"min-samples": 200}, "min-samples = 200"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(call, settings, reason):
    identity = decode_identity(call(MessageType.QUERY, settings=settings).content)
    assert identity.problem.startswith("client 1: ")
    assert reason in identity.problem


def test_a_client_that_cannot_take_part_cannot_train(call):
    assert "partition-id" in refusal(call(MessageType.TRAIN, instruction(), node={"num-partitions": 4}))


@pytest.mark.parametrize("message_type", [MessageType.TRAIN, MessageType.EVALUATE])
def test_a_defect_in_a_round_is_an_error_reply(call, monkeypatch, capsys, message_type):
    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(client_module, "evaluate", broken)
    assert refusal(call(message_type, instruction())) == "client 1: RuntimeError: out of memory"
    assert "Traceback" in capsys.readouterr().err


def test_a_defect_reaches_the_person_who_waits_for_the_client(call, monkeypatch, capsys):
    def broken(self):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Client, "identity", broken)
    assert decode_identity(call(MessageType.QUERY).content).problem == "client 1: RuntimeError: out of memory"
    assert "Traceback" in capsys.readouterr().err


def test_a_damaged_store_is_the_clients_problem_in_its_reply(call, home):
    call(MessageType.TRAIN, instruction())
    (path,) = (home / "clients" / "a-run" / "1").glob("round-000001*")
    path.write_bytes(b"")
    report, upload = decode_report(call(MessageType.TRAIN, instruction(2)).content, CODEC)
    assert report.problem.startswith(f"client 1: {path} cannot be read")
    assert (report.round, report.training, report.evaluation, upload) == (2, None, None, None)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Codec(9, 8, 3), "K is 9 there and 10 here"),
        (Codec(10, 7, 3), "d is 7 there and 8 here"),
        (Codec(10, 8, 4), "s is 4 there and 3 here"),
        (Codec(10, 8, 3, seed=1), "seed is 1 there and 0 here"),
        (Codec(10, 8, 3, "float16"), "format is float16 there and float32 here"),
    ],
)
def test_a_server_of_another_codec_is_refused_before_anything_is_done(call, home, other, named):
    payload = PrototypeSet(torch.tensor([1, 4]), torch.ones(2, other.dim))
    records = encode_instruction(Instruction("a-run", 1, True, payload), other)
    assert named in refusal(call(MessageType.TRAIN, records, {"sparsity-dim": 3}))
    assert not (home / "clients").exists()


def test_a_prototype_that_the_format_cannot_hold_costs_the_upload_alone(call, home, monkeypatch):
    codec = Codec(10, 8, 0, "float16")
    whole = PullObjective.upload
    held = []

    def grown(self, state, round_number):
        payload = whole(self, state, round_number)
        held.extend(payload.labels.tolist())
        vectors = payload.vectors.clone()
        vectors[1, 0] = 7e4
        return payload.with_vectors(vectors)

    settings = {"wire-dtype": "float16"}
    with monkeypatch.context() as patch:
        patch.setattr(PullObjective, "upload", grown)
        reply = call(MessageType.TRAIN, encode_instruction(Instruction("a-run", 1, True), codec), settings)
    report, upload = decode_report(reply.content, codec)
    assert upload is None
    assert report.problem == (
        f"client 1: a prototype cannot be sent (class {held[1]}): Row 1 of the prototypes holds 70000, beyond 65504, "
        "the largest number of float16; choose the wire-dtype bfloat16, int8 or float32."
    )
    assert (report.partition, report.round) == (1, 1)
    assert report.training.steps > 0
    assert report.evaluation.correct
    assert report.seconds > report.training.seconds > 0
    # what was trained is kept, and is where the next round starts
    assert list((home / "clients" / "a-run" / "1").glob("round-000001*"))
    reply = call(MessageType.TRAIN, encode_instruction(Instruction("a-run", 2, False, None, 1), codec), settings)
    report, upload = decode_report(reply.content, codec)
    assert report.problem == ""
    assert upload["vectors"].numpy().dtype == "float16"


def test_a_message_that_nobody_agreed_on_is_refused(call):
    records = instruction()
    records["weights"] = ArrayRecord({"w": Array(torch.ones(3).numpy())})
    assert "'weights'" in refusal(call(MessageType.TRAIN, records))
    assert "the record `instruction` is missing" in refusal(call(MessageType.TRAIN))


@pytest.mark.parametrize("run", ["../elsewhere", "/tmp/elsewhere", "..", ""])
def test_a_run_name_cannot_lead_out_of_the_store(call, run, home):
    records = instruction()
    records["instruction"]["run"] = run
    assert "run name" in refusal(call(MessageType.TRAIN, records))
    assert not (home / "clients").exists()


@pytest.mark.parametrize("message_type", [MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY])
def test_the_thread_setting_is_in_force_during_a_message(call, monkeypatch, message_type):
    seen = set()

    def watched(whole):
        def look(*arguments):
            blas = [library["num_threads"] for library in threadpool_info()]
            seen.add((torch.get_num_threads(), max(blas, default=3)))
            return whole(*arguments)

        return look

    # a query builds the model and looks at its widths, the others use it
    name = "__init__" if message_type == MessageType.QUERY else "features"
    monkeypatch.setattr(SplitModel, name, watched(getattr(SplitModel, name)))
    before = torch.get_num_threads()
    call(message_type, None if message_type == MessageType.QUERY else instruction(), {"threads": 3})
    assert seen == {(3, 3)}
    assert torch.get_num_threads() == before
