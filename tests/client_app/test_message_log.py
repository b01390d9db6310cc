"""What a site keeps of its own messages."""

import json

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from protosphere.client_app.app import app
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from protosphere.wire.sizes import bytes_by_part

QUICK = known_settings() | {"max-samples": 400, "feature-dim": 8, "models": "tiny_perceptron", "device": "cpu"}
QUICK["strategy"] = "protonorm"


@pytest.fixture
def site(home, monkeypatch):
    """site(settings, **node config) -> the client's folder, after two rounds, and replies."""

    def start(settings=None, **node):
        LocalGrid({}, [])
        monkeypatch.setattr("protosphere.client_app.site._here", False)
        node = {"partition-id": 1, "num-partitions": 4} | node
        replies = []
        kinds = (MessageType.TRAIN, MessageType.EVALUATE)
        for number, kind in ((number, kind) for number in (1, 2) for kind in kinds):
            trained = number - (kind == MessageType.TRAIN)
            instruction = Instruction("a-run", number, None, trained, last=number == 2)
            records = encode_instruction(instruction)
            message = Message(records, 77, kind)
            replies.append(
                (records, app(message, Context(1, 77, node, RecordDict(), QUICK | (settings or {}))).content)
            )
        return home / "clients" / "a-run" / "1", replies

    return start


def lines(folder):
    return [json.loads(line) for line in (folder / "messages.jsonl").read_text().splitlines()]


def test_sizes_are_those_of_what_crossed_and_figures_those_that_were_told(site):
    folder, replies = site({"strategy": "fedavg"})
    found = lines(folder)
    assert [(line["round"], line["trains"]) for line in found] == [(1, True), (1, False), (2, True), (2, False)]
    for line, (received, sent) in zip(found, replies, strict=True):
        for way, records in (("received", received), ("sent", sent)):
            assert line[way] == bytes_by_part(records)
        if not line["trains"]:
            assert line["rows"] == sent["metrics"]["evaluation.rows"]
            assert line["correct"]["classifier"] == sent["metrics"]["correct.classifier"]
    assert {"head", "training", "evaluation"} <= set().union(*(line["sent"] for line in found))
    assert "head" not in found[-1]["sent"]


def test_a_simulation_keeps_no_record(run, home):
    folder = home / "clients" / run({"rounds": 1}).name / "0"
    assert not (folder / "messages.jsonl").exists()


def test_under_privacy_no_accuracy_is_told(site):
    folder, _ = site({"strategy": "frame", "privacy": "release", "inference": "classifier"})
    assert not any("correct" in line for line in lines(folder))
