"""Runs over Flower: with a small app of the test's own over real processes, and with a stand-in for `flwr` what is said
and stopped when a SuperLink is lost sight of."""

import json
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict

from protosphere.launch import flower as module
from protosphere.launch.flower import (
    FlowerError,
    RunInterrupted,
    SuperLink,
    _Listener,
    as_toml,
    find_executable,
    launch,
)
from protosphere.launch.processes import Interrupted
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
from protosphere.launch.flower import launch
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

STAND_IN = """#!/bin/sh
echo "$@" >> {told}
case $1 in
    run) {run} ;;
    log) {log} ;;
    list) {list} ;;
    stop) {stop} ;;
esac
"""
SUBMITTED = """echo '{"success": true, "run-id": "7"}'"""
RUNNING = """echo '{"runs": [{"status": "running", "status-details": "N/A"}]}'"""
FINISHED = """echo '{"runs": [{"status": "finished:completed", "status-details": "N/A"}]}'"""
REFUSED = """echo '{"success": false, "error-message": "no"}'; exit 1"""


@pytest.fixture
def superlink(tmp_path, monkeypatch):
    """superlink(list=, stop=, log=, run=): a connection by a stand-in for `flwr`, and how that was called."""
    monkeypatch.setattr(module, "STATUS_PATIENCE", 1.0)
    monkeypatch.setattr(module, "LOOKS", 1)
    told = tmp_path / "told"
    (tmp_path / "cwd").mkdir()

    def make(list=RUNNING, stop=SUBMITTED, log="exit 1", run=SUBMITTED):
        (tmp_path / "flwr").write_text(STAND_IN.format(told=told, run=run, log=log, list=list, stop=stop))
        (tmp_path / "flwr").chmod(0o755)
        monkeypatch.setattr(module, "find_executable", lambda name: str(tmp_path / "flwr"))
        made.append(SuperLink(tmp_path, "clinics"))
        return made[0], lambda: [line.split()[0] for line in told.read_text().splitlines()]

    made = []
    yield make
    made[0].stop()


@pytest.mark.parametrize(
    ("list", "seen"), [(RUNNING, "still calls it running"), ("exit 1", "the SuperLink does not answer any more")]
)
def test_a_run_that_only_we_lost_sight_of_is_not_stopped(list, seen, superlink):
    link, told = superlink(list)
    link.submit(Path("/app"), {})
    link.stream(print)
    with pytest.raises(FlowerError, match=seen) as caught:
        link.status()
    assert "`flwr log 7 clinics` follows it, `flwr stop 7 clinics` ends it" in str(caught.value)
    assert link.stop() == ""
    assert set(told()) == {"run", "log", "list"}


@pytest.mark.parametrize(
    ("list", "log"), [(FINISHED, "echo a line; exec sleep 600"), (RUNNING, "sleep 2; echo a line")]
)
def test_a_stream_that_has_died_without_a_word_is_left_when_the_run_is_over(list, log, superlink, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.5)
    link, told = superlink(list, log=log)
    link.submit(Path("/app"), {})
    lines = []
    link.stream(lines.append)
    assert lines == ["a line\n"]
    assert "list" in told()


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (REFUSED, "no."),
        ("echo '╭─ Error ─╮\n│ [code: 15] No. │\n╰─╯' >&2; exit 1", "[code: 15] No."),
        ("echo no box; exit 3", "`flwr run` ended with exit code 3."),
    ],
)
def test_a_run_that_flower_does_not_take_is_refused_in_its_words(superlink, run, reason):
    link, told = superlink(run=run)
    with pytest.raises(FlowerError) as caught:
        link.submit(Path("/app"), {})
    assert str(caught.value) == f"Flower did not start the run: {reason}"
    assert (link.stop(), told()) == ("", ["run"])


@pytest.mark.parametrize(
    ("list", "stop", "advice", "asked"),
    [
        (RUNNING, SUBMITTED, "", ["stop"]),
        # what cannot be stopped is named, but not where it has just ended
        (RUNNING, REFUSED, "flwr stop 7 clinics", ["stop", "list"]),
        (FINISHED, REFUSED, "", ["stop", "list"]),
    ],
)
def test_a_run_that_is_on_is_stopped(superlink, list, stop, advice, asked):
    link, told = superlink(list, stop)
    link.submit(Path("/app"), {})
    assert link.stop() == advice
    assert told() == ["run", *asked]


def test_a_finished_run_is_not_stopped(superlink):
    link, told = superlink(FINISHED)
    link.submit(Path("/app"), {})
    assert link.status() == ("finished:completed", "")
    assert link.stop() == ""
    assert told() == ["run", "list"]


def test_a_run_that_was_submitted_as_ctrl_c_came_is_stopped(superlink, monkeypatch):
    link, told = superlink(run="sleep 1; " + SUBMITTED)
    communicate = module.subprocess.Popen.communicate

    def interrupted(process, *arguments, **options):
        monkeypatch.setattr(module.subprocess.Popen, "communicate", communicate)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(module.subprocess.Popen, "communicate", interrupted)
    with pytest.raises(Interrupted):
        link.submit(Path("/app"), {})
    assert link.stop() == ""
    assert (link.flower_run, told()) == ("7", ["run", "stop"])


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


def ended(tmp_path, status, details, connection=""):
    """A SuperLink whose run has ended."""
    link = SuperLink(tmp_path, connection)
    link.status = lambda: (status, details)
    return link


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
    outcome = module._outcome(ended(tmp_path, f"finished:{status}", details), heard, tmp_path)
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
        message = module._outcome(ended(tmp_path, "finished:failed", details), heard, None).message
        begun = module._outcome(ended(tmp_path, "finished:failed", details), heard, tmp_path).message
    assert "Ray gives up where one of its processes does not register within 30 s" in message
    assert "its load is 14.2 on 2 cores" in message
    assert "run the command again, or leave --flower out" in message
    assert "register within 30 s" not in begun


def test_a_folder_that_a_run_has_taken_away_is_none(tmp_path):
    heard, _ = listener(tmp_path)
    with heard:
        failed = ended(tmp_path, "finished:failed", "Simulation failed with exception: no.")
        gone = module._outcome(failed, heard, tmp_path / "x")
        elsewhere = module._outcome(ended(tmp_path, "finished:completed", ""), heard, None)
    assert (gone.ok, gone.folder) == (False, None)
    assert (elsewhere.ok, elsewhere.folder) == (True, None)


def test_a_server_process_that_died_on_a_superlink_with_nodes_is_no_simulation(tmp_path):
    link = ended(tmp_path, "finished:failed", "No heartbeat received from the task.", "clinics")
    offer = "resume it from its last checkpoint"
    heard, _ = listener(tmp_path)
    with heard:
        heard.hear("[protosphere] results: /there")
        heard.hear("[protosphere] warning: round 1, client 0: it says round 1/3 | x")
        outcome = module._outcome(link, heard, None)
        assert "the run's server process died" in outcome.message
        # there is nothing yet to go on from
        assert offer not in outcome.message
        assert not module._is_resumable(None, heard)
        heard.hear("[protosphere] round  1/30 |  10.0 % (worst   0.0) | 1 kB | 2 s | 1 min left")
        assert offer in module._outcome(link, heard, None).message
        assert module._is_resumable(None, heard)
        # where the run's folder is here, it says itself
        assert offer not in module._outcome(link, heard, tmp_path).message
        (tmp_path / "checkpoint.safetensors").touch()
        assert offer in module._outcome(link, heard, tmp_path).message


@pytest.mark.parametrize(("settings", "number"), [({}, "8"), ({"resume": "{old}"}, "9"), ({"resume": "a-name"}, "8")])
def test_a_runs_folder_is_found_by_flowers_number_of_it_or_is_the_one_resumed(
    settings, number, toy, tmp_path, home, monkeypatch
):
    results, opened = tmp_path / "results", []
    for name, content in (("old", {"flower_run": "7"}), ("new", {"flower_run": "8"})):
        (results / name).mkdir(parents=True)
        (results / name / "status.json").write_text(json.dumps(content))

    def submit(self, *_):
        self.flower_run = number
        raise FlowerError("no.")

    monkeypatch.setattr(SuperLink, "start", lambda self: None)
    monkeypatch.setattr(SuperLink, "submit", submit)
    settings = {name: value.format(old=results / "old") for name, value in settings.items()}
    outcome = launch(settings | {"results-dir": str(results)}, clients=1, show=print, app=toy, opened=opened.append)
    found = results / ("new" if number == "8" else "old")
    assert (outcome.folder, opened) == (found, [found])


def test_a_run_elsewhere_that_could_not_be_stopped_is_told(toy, home, monkeypatch):
    def interrupted(*_):
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(SuperLink, "start", lambda self: None)
    monkeypatch.setattr(SuperLink, "submit", interrupted)
    monkeypatch.setattr(SuperLink, "stop", lambda self: "flwr stop 7 clinics")
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


def test_what_show_raises_comes_through_and_leaves_no_folder(toy, home, monkeypatch):
    made = []
    monkeypatch.setattr(SuperLink, "start", lambda self: made.append(self._scratch))
    monkeypatch.setattr(SuperLink, "submit", lambda self, *_: None)
    monkeypatch.setattr(SuperLink, "stream", lambda self, hear: hear("[protosphere] a line\n"))

    def broken(line):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launch({}, clients=1, show=broken, app=toy)
    assert [folder.exists() for folder in made] == [False]


def test_temporary_folders_leave_room_for_rays_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    folder = module._scratch()
    assert len(str(folder)) <= module.LONGEST_FOLDER
    folder.rmdir()


def test_settings_come_back_from_toml_as_they_were():
    settings = {
        "rounds": 5,
        "alpha": 1e-05,
        "protonorm.gamma": 100.0,
        "protonorm.stop": "none",
        "max-prototype-norm": 1e300,
        "shared-init": False,
        "disclose-class-counts": True,
        "seed": 2**63 - 1,
        "dataset": '/a "b"/c\\d\'é\n\t\x7f\x01😀 # x = 1',
        "resume": "",
        "a.b.c": -1,
    }
    read = flatten_dict(tomllib.loads(as_toml(settings)))
    assert read == settings
    assert {name: type(value) for name, value in read.items()} == {n: type(v) for n, v in settings.items()}


def command(folder, name, program):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{program}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_executables_beside_python_come_before_those_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    with pytest.raises(FlowerError, match=f"`flwr` is neither beside {tmp_path}/venv/python nor on PATH"):
        find_executable("flwr")
    on_path = command(tmp_path / "path", "flwr", "exit 3")
    assert find_executable("flwr") == on_path
    beside = command(tmp_path / "venv", "flwr", "exit 3")
    assert find_executable("flwr") == beside


@pytest.mark.parametrize(
    ("program", "words", "log"),
    [
        (
            "echo first\necho 'no such database'\nexit 3",
            "ended with exit code 3 .* line is: no such database",
            "first\nno such database\n",
        ),
        ("exec sleep 600", "has not answered for .* on port .* line is: none", ""),
    ],
)
def test_a_superlink_that_does_not_start_is_reported_with_its_last_words(tmp_path, monkeypatch, program, words, log):
    found = command(tmp_path, "flower-superlink", program)
    monkeypatch.setattr(module, "find_executable", lambda name: found)
    if not log:
        monkeypatch.setattr(module, "START_PATIENCE", 0.3)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    started = SuperLink(scratch)
    with pytest.raises(FlowerError, match=words):
        started.start()
    started.stop()
    assert module.read_log(scratch) == log


def test_flower_gets_no_proxy_to_this_machine_and_no_cluster_but_the_one_that_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("no_proxy", "internal.example")
    monkeypatch.setenv("PROTOSPHERE_HOME", "relative")
    monkeypatch.chdir(tmp_path)
    environment = SuperLink(tmp_path / "scratch")._environment
    assert "RAY_ADDRESS" not in environment
    assert environment["no_proxy"] == environment["NO_PROXY"] == "internal.example,127.0.0.1,localhost"
    # the SuperLink works in another folder
    assert environment["PROTOSPHERE_HOME"] == str(tmp_path / "relative")
    assert environment["FLWR_HOME"] == str(tmp_path / "scratch" / "home")
    # where a Ray of our own keeps its session
    assert environment["RAY_TMPDIR"] == str(tmp_path / "scratch")
    joined = SuperLink(tmp_path, ray="10.0.0.2:6379")._environment
    assert (joined["RAY_ADDRESS"], "RAY_TMPDIR" in joined) == ("10.0.0.2:6379", False)
