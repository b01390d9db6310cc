"""Flower's own processes over a SuperNode that forks one for each message, beside one that starts it as Flower does.

Two apps that have a name, a version and their modules' names in common, and say different things.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.deployment import CONNECTION, Deployment, Site
from protosphere.launch.flower_run import launch
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import processes
from tests.waiting import comes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each message takes a process from its start"),
]
PROJECT = """
[project]
name = "told"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "told"
[tool.flwr.app.components]
serverapp = "told.server:app"
clientapp = "told.client:app"
[tool.flwr.app.config]
nodes = 2
"""
SERVER = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.2)
    for _ in range(2):
        messages = [Message(RecordDict({"none": ConfigRecord()}), node, "train") for node in nodes]
        for reply in grid.send_and_receive(messages):
            print("REPLY " + reply.content["told"]["words"], flush=True)
"""
CLIENT = """
import sys
before = "torch" in sys.modules
import json, os, time
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from told.words import WORDS, SECONDS
from told import words
app = ClientApp()
calls = []
@app.train()
def train(message, context):
    calls.append(1)
    told = {"site": context.node_config["partition-id"], "words": WORDS, "file": words.__file__, "calls": len(calls)}
    told |= {"before": before, "sum": torch.ones(3).sum().item(), "path": sys.path[1:], "argv": len(sys.argv)}
    told |= {"program": sys.argv[0], "parent": open(f"/proc/{os.getppid()}/cmdline").read()}
    print("waiting as", os.getpid(), flush=True)
    time.sleep(SECONDS)
    return Message(RecordDict({"told": ConfigRecord({"words": json.dumps(told)})}), reply_to=message)
"""


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory(prefix="protosphere-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def deployment(place):
    sites = [Site(0, {"warm": "yes"}), Site(1, {"warm": "no"})]
    with guarded(place / "scratch") as tell:
        made = Deployment(place / "federation", sites, tell, {"PROTOSPHERE_HOME": str(place / "home")})
        try:
            made.start()
            yield made
        finally:
            made.stop()
            assert made.members() == set()


def write_app(folder, words, seconds=0):
    """An app that says these words after so many seconds."""
    (folder / "told").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "told" / "__init__.py").touch()
    (folder / "told" / "server.py").write_text(SERVER)
    (folder / "told" / "client.py").write_text(CLIENT)
    (folder / "told" / "words.py").write_text(f"WORDS, SECONDS = {words!r}, {seconds}\n")
    return folder


@pytest.fixture
def replies(place, deployment, monkeypatch):
    """replies(words): what both sites answered in two rounds of an app with these words."""
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)

    def run(words):
        lines = []
        app = write_app(place / words, words)
        outcome = launch({}, clients=2, show=lines.append, verbose=True, app=app, connection=CONNECTION)
        assert outcome.ok, outcome.message
        return [json.loads(line.partition("REPLY ")[2]) for line in lines if "REPLY " in line]

    return run


def test_runs_of_different_code_stay_apart_and_are_what_they_are_without_a_warm_process(replies, deployment):
    files = set()
    for words in ("first", "second", "first"):
        told = replies(words)
        assert sorted(each["site"] for each in told) == [0, 0, 1, 1]
        warm, cold = ([each for each in told if each["site"] == site] for site in (0, 1))
        assert {each["words"] for each in told} == {words}
        # none goes on with what one before it has left
        assert {each["calls"] for each in told} == {1}
        assert not any(each["before"] for each in told)
        assert all("warm_clientapp.py\0serve" in each["parent"] for each in warm)
        assert all("flower-superexec" in each["parent"] for each in cold)
        for name in ("sum", "argv", "program", "path"):
            assert len({str(each[name]) for each in told}) == 1, name
        files |= {each["file"] for each in warm}
    assert len(files) == 2
    assert "takes" not in deployment.log(0).read_text()


def test_a_supernode_that_is_killed_in_a_message_leaves_nothing(place, deployment):
    log = deployment.log(0)
    before = len(log.read_text())
    deployment.flwr("run", str(write_app(place / "long", "long", seconds=600)), CONNECTION)
    assert comes(lambda: "waiting as" in log.read_text()[before:], 60), log.read_text()
    client = int(log.read_text()[before:].partition("waiting as ")[2].split()[0])
    alive = deployment.alive(0)
    assert client in alive
    (node,) = (pid for pid in alive if b"/flower-supernode\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(node, signal.SIGKILL)
    assert comes(lambda: not deployment.alive(0), 10), deployment.alive(0)
    assert client not in processes()
    assert list((deployment.folder / "site-0" / "state").glob("warm-*")) == []
