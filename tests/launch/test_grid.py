"""The in-process grid answers as Flower's own would: errors as error replies, the same from worker processes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message, MessageType, RecordDict

from protosphere.core.errors import RunError
from protosphere.core.flower import APP_RAISED
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.wire.messages import decode_report, encode_instruction
from protosphere.wire.payloads import Instruction
from tests.integration.watched import alive, descendants
from tests.waiting import comes

ROOT = Path(__file__).resolve().parents[2]

# Clients build these, in whatever process they run. A batch of one is the check of a model's shape, which they pass.
MODELS = """
import os, time
from torch import nn

class Model(nn.Flatten):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        if len(x) > 1:
            self.act()
        return super().forward(x)

def add():
    raise ArithmeticError("the sum is wrong")

def slow(**_): return Model(lambda: time.sleep(0.1))
def raising(**_): return Model(add)
def dying(**_): return Model(lambda: os._exit(3))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own("slow"): the setting's name for a model of MODELS, which worker processes can import, too."""
    module = f"models_of_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return lambda name: f"{module}:{name}"


@pytest.fixture
def grids():
    """grids(settings, nodes, workers): a grid that is closed after the test."""
    opened = []

    def make(settings=None, nodes=None, workers=1):
        config = known_settings() | {"max-samples": 400, "models": "tiny_perceptron", "feature-dim": 8}
        config["strategy"] = "fedproto"
        nodes = nodes or [{"partition-id": i, "num-partitions": 4} for i in range(4)]
        opened.append(LocalGrid(config | (settings or {}), nodes, workers))
        return opened[-1]

    yield make
    for grid in opened:
        grid.close()


def query(node):
    return Message(RecordDict(), node, MessageType.QUERY)


def instruct(node, message_type=MessageType.TRAIN, number=1):
    return Message(encode_instruction(Instruction("a-run", number)), node, message_type)


def test_a_reply_is_pulled_once_and_by_its_id(grids):
    grid = grids()
    first, second = grid.push_messages(query(node) for node in grid.get_node_ids()[:2])
    (reply,) = grid.pull_messages([second])
    assert reply.metadata.reply_to_message_id == second
    assert grid.pull_messages([second]) == []
    assert grid.pull_messages(["never pushed"]) == []
    (reply,) = grid.pull_messages([first])
    assert reply.metadata.reply_to_message_id == first


def test_worker_processes_give_the_same_replies(grids, own, monkeypatch, tmp_path):
    answers = []
    for workers in (1, 2):
        monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / f"home-{workers}"))
        grid = grids({"models": f"tiny_cnn,tiny_perceptron,{own('raising')}"}, workers=workers)
        partitions = {node: partition for partition, node in enumerate(grid.get_node_ids())}
        replies = grid.send_and_receive(instruct(node) for node in partitions)
        answers.append({partitions[reply.metadata.src_node_id]: comparable(reply) for reply in replies})
    assert answers[0][2] == (APP_RAISED, "client 2: ArithmeticError: the sum is wrong")
    assert answers[0] == answers[1]
    assert len(answers[0]) == 4


def test_in_process_nobody_is_late_and_workers_see_to_their_files_themselves(run, metrics, monkeypatch):
    """However long a client takes, or the whole process was suspended: else the figures were the clock's."""
    written = []
    monkeypatch.setattr("protosphere.core.files.sync", lambda path: written.append(path.name))
    settings = {"strategy": "fedproto", "rounds": 2, "evaluate-clients": "all", "fraction-train": 0.5, "device": "cpu"}
    at_once = dict.fromkeys(("start-timeout", "query-timeout", "round-timeout"), 1e-9)
    first = metrics(run(settings, clients=4))
    assert [line["training"]["valid"] for line in first[1:]] == [2, 2]
    for workers in (1, 2):
        written.clear()
        assert metrics(run(settings | at_once, clients=4, workers=workers)) == first
        assert len([name for name in written if name.startswith(".checkpoint")]) == 3
        assert any(name.startswith("round-") and name.endswith(".safetensors") for name in written) == (workers == 1)
        assert not any("did not say" in line for line in run.said)


def comparable(reply):
    """All of a reply that must not depend on where it was made."""
    if reply.has_error():
        return reply.error.code, reply.error.reason.strip().splitlines()[-1]
    report, upload = decode_report(reply.content)
    arrays = {name: array.numpy().tobytes() for name, array in upload.items()}
    return report.partition, replace(report.training, seconds=0.0), arrays


def test_a_worker_that_dies_ends_the_run_and_its_client_is_named(run, own):
    with pytest.raises(
        RunError, match=r"the process of client 1 died in round 0 .*; the simulation cannot replace it\. Start the run"
    ):
        run({"models": f"{own('slow')},{own('dying')}"}, clients=2, workers=2)


RUN = """
from protosphere.launch.grid import run_in_process
if __name__ == "__main__":
    settings = {"rounds": 1000, "max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron"}
    run_in_process(settings, clients=4, workers=2, show=lambda line: print(line, flush=True))
"""


def test_workers_do_not_outlive_a_killed_run(tmp_path):
    (tmp_path / "script.py").write_text(RUN)
    command, environment = [sys.executable, str(tmp_path / "script.py")], os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert any(line.startswith("round") for line in process.stdout)
        family = descendants(process.pid)
        process.kill()
    assert len(family) >= 3
    assert comes(lambda: not alive(family))
