"""Runs over real Flower with a small app of the test's own: outcome, log, and no process or folder left behind."""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from protosphere.launch import flower_run as module
from protosphere.launch.connection import Connection, FlowerError
from protosphere.launch.flower_run import RunInterrupted, _Listener, launch
from protosphere.launch.processes import Interrupted
from protosphere.launch.superlink import SuperLink
from tests.integration.watched import Watched

ROOT = Path(module.__file__).resolve().parents[2]

PYPROJECT = """
[project]
name = "toy"
version = "0.1.0"
description = "A small app to launch"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "toy.apps:server"
clientapp = "toy.apps:client"
[tool.flwr.app.config]
mode = ""
results-dir = ""
[tool.flwr.app.config.deep]
words = ""
"""
APPS = """
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.query()
def query(message, context):
    print("[protosphere error] a client says so")
    return Message(RecordDict({"told": ConfigRecord({"file": __file__})}), reply_to=message)

def say(line):
    print("[protosphere] " + line, flush=True)

@server.main()
def main(grid, context):
    config = context.run_config
    say("words: " + json.dumps(config["deep.words"]))
    say("in the folder: " + json.dumps(os.listdir()))
    folder = Path(config["results-dir"], "run")
    if config["results-dir"]:
        folder.mkdir(parents=True)
        folder.joinpath("status.json").write_text(json.dumps({"flower_run": str(context.run_id)}))
        say("a folder")
    while len(list(grid.get_node_ids())) < 2:
        time.sleep(0.1)
    messages = [Message(RecordDict(), node, "query", ttl=120) for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(messages, timeout=120):
        say("a client in " + str(reply.content["told"]["file"]))
    if config["mode"] == "raise":
        print("[protosphere error] the server gives up.", flush=True)
        raise RuntimeError("the server gives up.")
    if config["results-dir"]:
        folder.joinpath("summary.json").write_text("{}")
"""


@pytest.fixture
def toy(tmp_path):
    """The folder of the toy app."""
    folder = tmp_path / "toy"
    (folder / "toy").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "toy" / "__init__.py").touch()
    (folder / "toy" / "apps.py").write_text(APPS)
    return folder


LAUNCHED = """
import json, sys
from pathlib import Path
from protosphere.launch.flower_run import launch
app, results = sys.argv[1:]
opened = []
outcome = launch(
    {"mode": "raise", "results-dir": results, "deep.words": WORDS},
    clients=2, show=lambda line: print(line, flush=True), verbose=True, app=Path(app), opened=opened.append,
)
print(json.dumps([outcome.ok, str(outcome.folder), outcome.message, str(outcome.log), list(map(str, opened))]))
"""
WORDS = 'é "quoted" \\ and \n more'


@pytest.fixture
def place():
    """A temporary folder in a place short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.integration
def test_a_failed_run(toy, tmp_path, place):
    """What a killed one and an interrupted one leave: tests/integration."""
    command = [sys.executable, "-c", LAUNCHED.replace("WORDS", repr(WORDS)), str(toy), str(tmp_path)]
    watched, folder = Watched(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(place)}), tmp_path / "run"
    assert watched.finish() == 0, watched.output
    assert len(watched.seen) > 8, "SuperLink, SuperExec, flwr, the simulation, and Ray's daemons and actors were seen"
    assert watched.left() == set()
    assert list(place.iterdir()) == []
    ok, *told = json.loads(watched.output.splitlines()[-1])
    assert not ok
    assert told == [str(folder), "the server gives up.", str(folder / "run.log"), [str(folder)]]
    log = (folder / "run.log").read_text()
    lines = [line.removeprefix("[protosphere] ") for line in log.splitlines()]
    assert f"words: {json.dumps(WORDS)}" in lines
    assert "in the folder: []" in lines
    # clients' code comes from the bundle, not from a working copy
    assert sum(line.startswith("a client in ") and "/home/apps/" in line for line in lines) == 2
    assert "RuntimeError: the server gives up." in log
    assert "--- SuperLink ---" in log
    assert "\x1b" not in log
    shown = watched.output.splitlines()
    assert "the server gives up." not in shown, "the outcome tells"
    assert any("Starting Flower Simulation" in line for line in shown), "verbose shows Flower's lines"


# --- without Flower ---------------------------------------------------------------------------------


def listener(tmp_path, verbose=False):
    lines = []
    return _Listener(tmp_path / "log", lines.append, verbose), lines


def test_the_listener_takes_only_lines_of_ours(tmp_path):
    heard, lines = listener(tmp_path)
    stream = (
        "\x1b[92mINFO \x1b[0m:      Starting Flower Simulation\n",
        "[protosphere] results: /a/b c\n",
        "(ClientAppActor pid=7) [protosphere] forged\n",
        "[protosphere]   client 0: indented\n",
        "[protosphere error] the truth, which the outcome tells.\n",
        "\n",
    )
    with heard:
        assert [heard.hear(line) for line in stream] == [False, True, False, True, True, False]
    assert lines == ["results: /a/b c", "  client 0: indented"]
    assert (tmp_path / "log").read_text().startswith("INFO :      Starting Flower Simulation\n[protosphere] results:")


class Ended(SuperLink):
    """A SuperLink whose run has ended."""

    def __init__(self, status, details):
        self.answer = (status, details)

    def status(self):
        return self.answer


@pytest.mark.parametrize(
    ("status", "details", "said", "message"),
    [
        ("failed", "Simulation failed with exception: client 3: why.", "[protosphere error] why", "client 3: why."),
        ("failed", "ServerApp failed with exception: it broke.", "[protosphere error] it broke.", "it broke."),
        # a defect: it told nobody, and may have no words of its own
        ("failed", "ServerApp failed with exception: ", "AssertionError", "exception in the log: AssertionError)"),
        ("failed", "ServerApp failed with exception: 'bias'", "KeyError: 'bias'", "with exception: 'bias'."),
        ("failed", "Simulation failed: boom", "ValueError: boom", "Simulation failed: boom."),
        (
            "failed",
            "An error.",
            "KeyError: 1\nValueError: empty",
            "(the last exception in the log: ValueError: empty).",
        ),
        ("failed", "No heartbeat received from the task.", "", "the simulation's process died"),
        ("stopped", "", "", "Flower reports the run as finished:stopped."),
        ("completed", "", "", "the run ended without a summary in {folder}."),
    ],
)
def test_why_a_run_failed(status, details, said, message, tmp_path):
    heard, _ = listener(tmp_path)
    with heard:
        for line in said.splitlines():
            heard.hear(line)
    outcome = module._outcome(Ended(f"finished:{status}", details), heard, tmp_path)
    assert (outcome.ok, outcome.folder) == (False, tmp_path)
    assert message.format(folder=tmp_path) in outcome.message


def test_a_simulation_that_did_not_begin_names_ray_s_limit_the_load_and_what_to_do(tmp_path, monkeypatch):
    """It is all that Flower says, whatever Ray has said; where there is a folder, Ray had begun."""
    monkeypatch.setattr("os.getloadavg", lambda: (14.25, 9.0, 5.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    details = "Simulation failed with exception: An error was encountered. Ending simulation."
    heard, _ = listener(tmp_path)
    with heard:
        heard.hear("RuntimeError: An error was encountered. Ending simulation.")
        message = module._outcome(Ended("finished:failed", details), heard, None).message
        begun = module._outcome(Ended("finished:failed", details), heard, tmp_path).message
    assert "Ray gives up where one of its processes does not register within 30 s" in message
    assert "its load is 14.2 on 2 cores" in message
    assert "run the command again, or leave --flower out" in message
    assert "register within 30 s" not in begun


def test_a_folder_that_a_run_has_taken_away_is_none(tmp_path):
    heard, _ = listener(tmp_path)
    with heard:
        gone = module._outcome(Ended("finished:failed", "Simulation failed with exception: no."), heard, tmp_path / "x")
        elsewhere = module._outcome(Ended("finished:completed", ""), heard, None)
    assert (gone.ok, gone.folder) == (False, None)
    assert (elsewhere.ok, elsewhere.folder) == (True, None)


def test_a_server_process_that_died_on_a_superlink_with_nodes_is_no_simulation(tmp_path):
    class Connected(Connection):
        def status(self):
            return "finished:failed", "No heartbeat received from the task."

    offer = "resume it from its last checkpoint"
    heard, _ = listener(tmp_path)
    with heard:
        heard.hear("[protosphere] results: /there")
        heard.hear("[protosphere] warning: round 1, client 0: it says round 1/3 | x")
        outcome = module._outcome(Connected(tmp_path), heard, None)
        assert "the run's server process died" in outcome.message
        # there is nothing yet to go on from
        assert offer not in outcome.message
        assert not module._resumable(None, heard)
        heard.hear("[protosphere] round  1/30 | after  0:  10.0 % (worst   0.0) | 1 kB | 2 s | 1 min left")
        assert offer in module._outcome(Connected(tmp_path), heard, None).message
        assert module._resumable(None, heard)
        # where the run's folder is here, it says itself
        assert offer not in module._outcome(Connected(tmp_path), heard, tmp_path).message
        (tmp_path / "checkpoint.safetensors").touch()
        assert offer in module._outcome(Connected(tmp_path), heard, tmp_path).message


def test_a_runs_folder_is_found_by_flowers_number_of_it_or_is_the_one_resumed(tmp_path):
    opened = []
    own = module._RunFolderSearch(Path("a-name"), tmp_path, opened.append)
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, number in ((old, "7"), (new, "8")):
        folder.mkdir()
        (folder / "status.json").write_text(json.dumps({"flower_run": number}))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "status.json").write_text("{")
    assert (own.look("9"), opened) == (None, [])
    assert [own.look("8"), own.look("8")] == [new, new]
    assert opened == [new]
    resumed = module._RunFolderSearch(old, tmp_path, opened.append)
    assert resumed.look("9") == old
    # of a run that Flower has not taken there is none
    none = module._RunFolderSearch(Path(""), tmp_path, opened.append)
    assert none.look("") is None


def test_a_run_elsewhere_that_could_not_be_stopped_is_told(toy, home, monkeypatch):
    monkeypatch.setattr(Connection, "start", lambda self: None)
    monkeypatch.setattr(Connection, "run", lambda self, *_: (_ for _ in ()).throw(Interrupted(signal.SIGTERM)))
    monkeypatch.setattr(Connection, "stop", lambda self: "flwr stop 7 clinics")
    with pytest.raises(RunInterrupted) as caught:
        launch({}, clients=1, show=print, app=toy, connection="clinics")
    assert caught.value.outcome.message == (
        "the run could not be stopped and may still be running: try `flwr stop 7 clinics`."
    )


def test_a_folder_without_an_app(tmp_path, home):
    outcome = launch({}, clients=1, show=print, app=tmp_path)
    assert outcome.message.startswith(f"{tmp_path} holds no pyproject.toml, so there is no Flower app to run")


@pytest.mark.parametrize("kept", [True, False])
def test_flower_that_does_not_start_is_an_outcome_with_a_log_where_one_can_be_kept(
    toy, tmp_path, home, monkeypatch, kept
):
    def refuse(self):
        (self._scratch / "superlink.log").write_text("its last words\n")
        raise FlowerError("Flower is ill.")

    monkeypatch.setattr(SuperLink, "start", refuse)
    (tmp_path / "file").touch()
    outcome = launch({} if kept else {"results-dir": str(tmp_path / "file")}, clients=1, show=print, app=toy)
    assert (outcome.ok, outcome.folder, outcome.message) == (False, None, "Flower is ill.")
    assert "its last words" in outcome.log.read_text() if kept else outcome.log is None


def test_what_show_raises_comes_through_and_leaves_no_folder(toy, home, monkeypatch, tmp_path):
    def run(self, app, run_config, hear, federation):
        hear("[protosphere] a line\n")

    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(SuperLink, "start", lambda self: made.append(self._scratch))
    monkeypatch.setattr(SuperLink, "run", run)
    made = []

    def broken(line):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launch({}, clients=1, show=broken, app=toy)
    assert made
    assert not made[0].exists()


def test_temporary_folders_leave_room_for_rays_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    folder = module._scratch()
    assert len(str(folder)) <= module.LONGEST_FOLDER
    folder.rmdir()
