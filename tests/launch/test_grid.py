"""The in-process grid answers as Flower's own would: errors as error replies, the same from worker processes."""

import os
from multiprocessing import get_context

import pytest
from flwr.app import Message, MessageType, RecordDict

from protosphere.core.errors import RunError
from protosphere.core.flower import APP_RAISED
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.strategies import known_settings
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from tests.conftest import QUICK
from tests.integration.watched import alive, descendants
from tests.waiting import comes

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


def test_an_exception_of_a_client_is_an_error_reply(grids, own):
    grid = grids({"models": own("raising")})
    (reply,) = grid.send_and_receive([instruct(grid.get_node_ids()[2])])
    assert reply.error.code == APP_RAISED
    assert reply.error.reason.strip().splitlines()[-1] == "client 2: ArithmeticError: the sum is wrong"


def test_worker_processes_give_the_same_run_nobody_is_late_and_workers_see_to_their_files_themselves(
    run, own, metrics, monkeypatch
):
    """However long a client takes, or the whole process was suspended: else the figures were the clock's."""
    written = []
    monkeypatch.setattr("protosphere.core.files.sync", lambda path: written.append(path.name))
    settings = {"strategy": "fedproto", "evaluate-clients": "all", "fraction-train": 0.5}
    settings["models"] = f"tiny_cnn,tiny_perceptron,{own('raising')}"
    at_once = dict.fromkeys(("start-timeout", "round-timeout"), 1e-9)
    whole = run(settings)
    lines, prototypes = metrics(whole), (whole / "prototypes.safetensors").read_bytes()
    assert all(line["problems"]["2"].endswith('"ArithmeticError: the sum is wrong"') for line in lines)
    assert [line["training"]["asked"] for line in lines[1:]] == [2, 2]
    for workers in (1, 2):
        written.clear()
        folder = run(settings | at_once, workers=workers)
        assert metrics(folder) == lines
        # clients' uploads are among them
        assert (folder / "prototypes.safetensors").read_bytes() == prototypes
        assert len([name for name in written if name.startswith(".checkpoint")]) == 3
        assert any(name.startswith("round-") and name.endswith(".safetensors") for name in written) == (workers == 1)
        assert not any("did not say" in line for line in run.said)


def test_a_worker_that_dies_ends_the_run_and_its_client_is_named(run, own):
    with pytest.raises(
        RunError, match=r"the process of client 1 died in round 0 .*; the simulation cannot replace it\. Start the run"
    ):
        run({"models": f"{own('slow')},{own('dying')}"}, clients=2, workers=2)


def test_workers_do_not_outlive_a_killed_run():
    # a fork has loaded torch already
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    more = {"clients": 4, "workers": 2, "show": sender.send}
    process = fork.Process(target=run_in_process, args=(QUICK | {"rounds": 1000},), kwargs=more)
    process.start()
    sender.close()
    try:
        assert any(line.startswith("round") for line in iter(receiver.recv, None))
        family = descendants(process.pid)
    finally:
        process.kill()
        process.join()
    assert len(family) >= 3
    assert comes(lambda: not alive(family))
