"""The in-process grid answers as Flower's own would: errors as error replies, the same from worker processes."""

import os

import pytest
from flwr.app import Message, RecordDict

from protosphere.core.errors import RunError
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.launch.workers import forking_context
from protosphere.strategies import known_settings
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


def test_a_reply_is_pulled_once_and_by_its_id():
    config = known_settings() | QUICK | {"strategy": "fedproto"}
    grid = LocalGrid(config, [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    first, second = grid.push_messages(Message(RecordDict(), node, "query") for node in grid.get_node_ids())
    for message_id in (second, first):
        (reply,) = grid.pull_messages([message_id])
        assert reply.metadata.reply_to_message_id == message_id
        assert grid.pull_messages([message_id, "never pushed"]) == []


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
    context = forking_context()
    receiver, sender = context.Pipe(duplex=False)
    more = {"clients": 4, "workers": 2, "show": sender.send}
    process = context.Process(target=run_in_process, args=(QUICK | {"rounds": 1000},), kwargs=more)
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
