"""Two sites over Flower's own processes, with the SuperExec of ours: one forks its ClientApps, one starts each anew and
runs listed apps alone. Two apps that have a name, a version and their modules' names in common say different things."""

import json
import os
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from deploy.demo import CONNECTION, Deployment, Site
from protosphere.launch.flower import digest_of, launch
from tests.integration.watched import PATIENCE, everybody, members
from tests.waiting import comes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="no /proc to look at processes in"),
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
answers = 2
strategy = "none"
rounds = 2
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
        sent, deadline = set(grid.push_messages(messages)), time.monotonic() + 300
        # a site that refuses the app never answers
        while len(nodes) - len(sent) < context.run_config["answers"] and time.monotonic() < deadline:
            for reply in grid.pull_messages(sent):
                sent.discard(reply.metadata.reply_to_message_id)
                print("REPLY " + reply.content["told"]["words"], flush=True)
            time.sleep(0.2)
"""
CLIENT = """
import json, os, time
import numpy, torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from told.words import WORDS, SECONDS
from told import words
app = ClientApp()
calls = []
@app.train()
def train(message, context):
    calls.append(1)
    lines = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()]
    torch.manual_seed(3)
    told = {"site": context.node_config["partition-id"], "words": WORDS, "file": words.__file__, "calls": len(calls)}
    told |= {"random": [torch.initial_seed() and numpy.random.random(), torch.rand(2).tolist()]}
    told |= {"tokens": sum("--token" in line for line in lines), "name": open("/proc/self/comm").read().strip()}
    told |= {"parent": open(f"/proc/{os.getppid()}/cmdline").read()}
    print("waiting as", os.getpid(), flush=True)
    time.sleep(SECONDS)
    return Message(RecordDict({"told": ConfigRecord({"words": json.dumps(told)})}), reply_to=message)
"""


def write_app(folder, words, seconds=0):
    """An app that says these words after so many seconds."""
    (folder / "told").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "told" / "__init__.py").touch()
    (folder / "told" / "server.py").write_text(SERVER)
    (folder / "told" / "client.py").write_text(CLIENT)
    (folder / "told" / "words.py").write_text(f"WORDS, SECONDS = {words!r}, {seconds}\n")
    return folder


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory(prefix="protosphere-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def deployment(place):
    app = write_app(place / "first", "first")
    (place / "apps.txt").write_text(f"{digest_of(app)} {app.name}\n")
    sites = [Site(0, {"warm": "yes"}), Site(1, {"warm": "no", "allow-app": str(place / "apps.txt")})]
    made = Deployment(place / "federation", sites, {"PROTOSPHERE_HOME": str(place / "home")})
    try:
        made.start()
        yield made
    finally:
        made.stop()
        assert everybody(made) == set()


@pytest.fixture
def replies(deployment, monkeypatch):
    """replies(app, answers=2): what so many sites answered in each of its two rounds."""
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)

    def run(app, answers=2):
        lines = []
        outcome = launch(
            {"answers": answers}, clients=2, show=lines.append, verbose=True, app=app, connection=CONNECTION
        )
        assert outcome.ok, outcome.message
        return [json.loads(line.partition("REPLY ")[2]) for line in lines if "REPLY " in line]

    return run


def test_runs_of_different_code_stay_apart_and_a_site_runs_only_what_it_has_listed(replies, deployment, place):
    first = replies(place / "first")
    assert sorted(reply["site"] for reply in first) == [0, 0, 1, 1]
    assert {reply["words"] for reply in first} == {"first"}
    warm, cold = ([reply for reply in first if reply["site"] == site] for site in (0, 1))
    assert all("forkserver" in reply["parent"] for reply in warm)
    assert all("executor.py" in reply["parent"] for reply in cold)
    # a folder of its own for each task of the site that asks whose code it is
    assert len({reply["file"] for reply in cold}) == 2

    app = write_app(place / "changed", "changed")
    changed = replies(app, answers=1)
    assert [(reply["site"], reply["words"]) for reply in changed] == [(0, "changed")] * 2
    assert {reply["file"] for reply in changed}.isdisjoint(reply["file"] for reply in warm)
    log = deployment.log(1).read_text()
    assert f"refused app={digest_of(app)}: it is not listed in {place / 'apps.txt'}" in log

    # Flower would go on with a folder of that name, whatever lies in it
    home = deployment.folder / "site-1" / "state" / "flwr" / "apps"
    write_app(home / f"told.told.1.0.0.{digest_of(place / 'first')[:8]}", "planted")
    again = replies(place / "first")
    assert {reply["words"] for reply in again if reply["site"] == 1} == {"first"}

    every = first + changed + again
    # none goes on with what one before it has left
    assert {reply["calls"] for reply in every} == {1}
    assert {reply["name"] for reply in every} == {"flwr-clientapp"}
    assert {reply["tokens"] for reply in every} == {0}
    # what is seeded is the same, and what is not differs from fork to fork
    assert len({str(reply["random"][1]) for reply in every}) == 1
    numbers = [reply["random"][0] for reply in every]
    assert len(set(numbers)) == len(numbers)
    assert deployment.log(0).read_text().count(" method=none rounds=2") == len(every) - len(cold) - len(cold)


def test_nobody_else_on_the_machine_gets_a_site_s_task(deployment):
    port = deployment.ports[0]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/runtime/acquire-task", data=b"", method="POST")
    request.add_header("content-type", "application/protobuf")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        opener.open(request, timeout=PATIENCE)


def test_a_supernode_that_is_killed_in_a_message_leaves_nothing(place, deployment):
    log = deployment.log(0)
    before = len(log.read_text())
    deployment.flwr("run", str(write_app(place / "long", "long", seconds=600)), CONNECTION)
    assert comes(lambda: "waiting as" in log.read_text()[before:]), log.read_text()
    client = int(log.read_text()[before:].partition("waiting as ")[2].split()[0])
    alive = members(deployment, 0)
    assert client in alive
    # python -P .../supernode.py; its parent has the same words behind its own
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in alive}
    (node,) = (pid for pid, command in words.items() if len(command) > 2 and command[2].endswith(b"/supernode.py"))
    os.kill(node, signal.SIGKILL)
    assert comes(lambda: not members(deployment, 0)), members(deployment, 0)
    assert not Path(f"/proc/{client}").exists()
