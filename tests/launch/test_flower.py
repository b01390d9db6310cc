"""Runs over Flower, with a stand-in for `flwr`: what is said and stopped when a SuperLink is lost sight of. Real ones:
tests/integration/test_flwr_run.py."""

import json
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
    Listener,
    RunInterrupted,
    SuperLink,
    as_toml,
    describe_failure,
    find_executable,
    launch,
)
from protosphere.launch.processes import Interrupted


@pytest.fixture
def app(tmp_path):
    """The folder of an app, of which nothing is read but that it is one."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").touch()
    return tmp_path / "app"


# --- a SuperLink -----------------------------------------------------------------------------------------------

STAND_IN = """#!/bin/sh
echo "$1" >> {calls}
case $1 in
    run) {run} ;;
    log) {log} ;;
    list) {list} ;;
    stop) {stop} ;;
esac
"""
SUBMITTED = """echo '{"success": true, "run-id": "7"}'"""
REFUSED = """echo '{"success": false, "error-message": "no"}'; exit 1"""
RUNNING = """echo '{"runs": [{"status": "running", "status-details": "N/A"}]}'"""
FINISHED = """echo '{"runs": [{"status": "finished:completed", "status-details": "N/A"}]}'"""
ADVICE = "flwr stop 7 clinics"


def write_program(folder, name, code):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{code}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


@pytest.fixture
def superlink(tmp_path, monkeypatch):
    """superlink(list=, stop=, log=, run=): a connection by a stand-in for `flwr`, and what that was called for."""
    monkeypatch.setattr(module, "STATUS_PATIENCE", 0.0)
    calls = tmp_path / "calls"
    (tmp_path / "cwd").mkdir()
    links = []

    def make(list=RUNNING, stop=SUBMITTED, log="exit 1", run=SUBMITTED):
        program = write_program(tmp_path, "flwr", STAND_IN.format(calls=calls, run=run, log=log, list=list, stop=stop))
        monkeypatch.setattr(module, "find_executable", lambda name: program)
        links.append(SuperLink(tmp_path, "clinics"))
        return links[0], lambda: calls.read_text().split()

    yield make
    links[0].stop()


@pytest.mark.parametrize(
    ("list", "stop", "status", "advice", "calls"),
    [
        # what only we lost sight of may go on, and is not stopped
        (RUNNING, SUBMITTED, "Flower still calls it running. If only this connection broke", "", ["list"]),
        ("exit 1", SUBMITTED, "does not answer any more. .* `flwr log 7 clinics` follows it, `flw", "", ["list"]),
        (FINISHED, SUBMITTED, "", "", ["list"]),
        # nobody has asked how it ended: it is on
        (RUNNING, SUBMITTED, None, "", ["stop"]),
        (RUNNING, REFUSED, None, ADVICE, ["stop", "list"]),
        (FINISHED, REFUSED, None, "", ["stop", "list"]),
    ],
)
def test_a_run_that_is_on_is_stopped_and_no_other(superlink, list, stop, status, advice, calls):
    link, called = superlink(list, stop)
    link.submit(Path("/app"), {})
    if status:
        with pytest.raises(FlowerError, match=status):
            link.status()
    elif status is not None:
        assert link.status() == ("finished:completed", "")
    assert link.stop() == advice
    assert called() == ["run", *calls]


@pytest.mark.parametrize(
    ("list", "log"), [(FINISHED, "echo a line; exec sleep 600"), (RUNNING, "sleep 2; echo a line")]
)
def test_a_stream_that_has_died_without_a_word_is_left_when_the_run_is_over(list, log, superlink, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.5)
    link, called = superlink(list, log=log)
    link.submit(Path("/app"), {})
    assert [*link.stream()] == ["a line\n"]
    assert "list" in called()


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (REFUSED, "no."),
        ("echo '╭─ Error ─╮\n│ [code: 15] No. │\n╰─╯' >&2; exit 1", "[code: 15] No."),
        ("echo no box; exit 3", "`flwr run` ended with exit code 3."),
    ],
)
def test_a_run_that_flower_does_not_take_is_refused_in_its_words(superlink, run, reason):
    link, called = superlink(run=run)
    with pytest.raises(FlowerError) as caught:
        link.submit(Path("/app"), {})
    assert str(caught.value) == f"Flower did not start the run: {reason}"
    assert (link.stop(), called()) == ("", ["run"])


def test_a_run_that_was_submitted_as_ctrl_c_came_is_stopped(superlink, monkeypatch):
    link, called = superlink(run="sleep 1; " + SUBMITTED)
    communicate = module.subprocess.Popen.communicate

    def interrupted(process, *arguments, **options):
        monkeypatch.setattr(module.subprocess.Popen, "communicate", communicate)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(module.subprocess.Popen, "communicate", interrupted)
    with pytest.raises(Interrupted):
        link.submit(Path("/app"), {})
    assert link.stop() == ""
    assert (link.flower_run, called()) == ("7", ["run", "stop"])


def test_the_listener_takes_only_lines_of_ours():
    shown = []
    listener = Listener(shown.append)
    stream = (
        "\x1b[92mINFO \x1b[0m:      Starting Flower Simulation\n",
        "[protosphere] results: /a/b c\n",
        "(ClientAppActor pid=7) [protosphere] forged\n",
        "[protosphere]   client 0: indented\n",
        "[protosphere error] the truth, which the outcome tells.\n",
        "\n",
    )
    assert [listener.hear(line) for line in stream] == [False, True, False, True, True, False]
    assert shown == ["results: /a/b c", "  client 0: indented"]
    assert listener.text.startswith("INFO :      Starting Flower Simulation\n[protosphere] results:")


RAISED = "ServerApp failed with exception: "
SILENT, UNBEGUN = "No heartbeat received from the task.", "failed: An error was encountered. Ending simulation."
ROUND = "[protosphere] round  1/30 |  10.0 % (worst   0.0) | 1 kB | 2 s | 1 min left"
FORGED = "[protosphere] warning: round 1, client 0: it says round 1/3 | x"


@pytest.mark.parametrize(
    ("status", "details", "heard", "place", "words"),
    [
        ("failed", RAISED + "client 3: why.", "[protosphere error] client 3: why.", "here", "client 3: why."),
        # a defect: it told nobody, and may have no words of its own
        ("failed", RAISED, "AssertionError", "here", "(the last exception in the log: AssertionError)."),
        ("failed", RAISED + "'bias'", "KeyError: 'bias'", "here", "with exception: 'bias'."),
        ("failed", "Simulation failed: boom", "ValueError: boom", "here", "Simulation failed: boom."),
        (
            "failed",
            "An error.",
            "KeyError: 1\nValueError: no",
            "here",
            "(the last exception in the log: ValueError: no).",
        ),
        ("failed", SILENT, "", "here", "the simulation's process died"),
        ("stopped", "", "", "here", "Flower reports the run as finished:stopped."),
        ("completed", "", "", "here", "the run ended without a summary in {folder}."),
        ("completed", "", "", "elsewhere", ""),
        # all that Flower says, whatever Ray has said; where there is a folder, Ray had begun
        ("failed", UNBEGUN, "", "nowhere", "Ray gives up where one of its processes does not register within 30 s"),
        ("failed", UNBEGUN, "", "nowhere", "its load is 14.2 on 2 cores: end other programs or wait, and run the comm"),
        ("failed", UNBEGUN, "", "here", "Ending simulation."),
        # over a connection, where something is there to go on from
        ("failed", SILENT, FORGED, "elsewhere", "the run's server process died, often bec"),
        ("failed", SILENT, FORGED, "elsewhere", "hears from it."),
        ("failed", SILENT, ROUND, "elsewhere", "hears from it; resume it from its last checkpoint."),
        ("failed", SILENT, ROUND, "here", "hears from it."),
    ],
)
def test_why_a_run_failed(status, details, heard, place, words, tmp_path, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (14.25, 9.0, 5.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    listener = Listener(lambda line: None)
    for line in heard.splitlines():
        listener.hear(line)
    folder = tmp_path if place == "here" else None
    is_simulation = place != "elsewhere"
    message = describe_failure(f"finished:{status}", details, listener, folder, is_simulation)
    assert words.format(folder=tmp_path) in message
    assert bool(words) == bool(message)
    assert listener.can_resume(None) == (heard == ROUND)


@pytest.fixture
def staged(monkeypatch):
    """staged(method=what it does): a SuperLink that does nothing else."""

    def stage(**methods):
        for name in ("start", "submit", "stream", "stop"):
            monkeypatch.setattr(SuperLink, name, methods.get(name, lambda self, *_: ()))

    return stage


def raise_error(error):
    raise error


@pytest.mark.parametrize(("settings", "number"), [({}, "8"), ({"resume": "{old}"}, "9"), ({"resume": "a-name"}, "8")])
def test_a_runs_folder_is_found_by_flowers_number_of_it_or_is_the_one_resumed(
    settings, number, app, tmp_path, home, staged
):
    results, opened = tmp_path / "results", []
    for name, content in (("old", {"flower_run": "7"}), ("new", {"flower_run": "8"})):
        (results / name).mkdir(parents=True)
        (results / name / "status.json").write_text(json.dumps(content))

    def submit(self, *_):
        self.flower_run = number
        raise FlowerError("no.")

    staged(submit=submit)
    settings = {name: value.format(old=results / "old") for name, value in settings.items()}
    outcome = launch(settings | {"results-dir": str(results)}, clients=1, show=print, app=app, opened=opened.append)
    found = results / ("new" if number == "8" else "old")
    assert (outcome.folder, opened) == (found, [found])


def test_a_run_elsewhere_that_could_not_be_stopped_is_told(app, home, staged):
    staged(submit=lambda *_: raise_error(Interrupted(signal.SIGTERM)), stop=lambda self: ADVICE)
    with pytest.raises(RunInterrupted) as caught:
        launch({}, clients=1, show=print, app=app, connection="clinics")
    assert caught.value.outcome.message == f"the run could not be stopped and may still be running: try `{ADVICE}`."


def test_a_folder_without_an_app(tmp_path, home):
    outcome = launch({}, clients=1, show=print, app=tmp_path)
    assert outcome.message.startswith(f"{tmp_path} holds no pyproject.toml, so there is no Flower app to run")


@pytest.mark.parametrize("is_writable", [True, False])
def test_flower_that_does_not_start_is_an_outcome_with_a_log_where_one_can_be_kept(
    app, tmp_path, home, staged, is_writable
):
    def refuse(self):
        (self._scratch / "superlink.log").write_text("its last words\n")
        raise FlowerError("Flower is ill.")

    staged(start=refuse)
    (tmp_path / "file").touch()
    settings = {} if is_writable else {"results-dir": str(tmp_path / "file")}
    outcome = launch(settings, clients=1, show=print, app=app)
    assert (outcome.ok, outcome.folder, outcome.message) == (False, None, "Flower is ill.")
    assert "its last words" in outcome.log.read_text() if is_writable else outcome.log is None


def test_what_show_raises_comes_through_and_leaves_no_folder(app, home, staged):
    folders = []
    staged(start=lambda self: folders.append(self._scratch), stream=lambda self: ["[protosphere] a line\n"])
    with pytest.raises(BrokenPipeError):
        launch({}, clients=1, show=lambda line: raise_error(BrokenPipeError()), app=app)
    assert [folder.exists() for folder in folders] == [False]


def test_temporary_folders_leave_room_for_rays_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    folder = module._scratch()
    assert len(str(folder)) <= module.LONGEST_FOLDER
    folder.rmdir()


def test_settings_come_back_from_toml_as_they_were():
    numbers = {"rounds": 5, "alpha": 1e-05, "protonorm.gamma": 100.0, "max-prototype-norm": 1e300, "seed": 2**63 - 1}
    others = {"shared-init": False, "dataset": '/a "b"/c\\d\'é\n\t\x7f\x01😀 # x = 1', "resume": "", "a.b.c": -1}
    settings = numbers | others
    read = flatten_dict(tomllib.loads(as_toml(settings)))
    assert read == settings
    assert {name: type(value) for name, value in read.items()} == {n: type(v) for n, v in settings.items()}


def test_executables_beside_python_come_before_those_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    with pytest.raises(FlowerError, match=f"`flwr` is neither beside {tmp_path}/venv/python nor on PATH"):
        find_executable("flwr")
    for place in ("path", "venv"):
        program = write_program(tmp_path / place, "flwr", "exit 3")
        assert find_executable("flwr") == program


@pytest.mark.parametrize(
    ("program", "words", "log"),
    [
        ("echo first\necho 'no database'\nexit 3", "ended with exit code 3 .* is: no database", "first\nno database\n"),
        ("exec sleep 600", "has not answered for .* on port .* line is: none", ""),
    ],
)
def test_a_superlink_that_does_not_start_is_reported_with_its_last_words(tmp_path, monkeypatch, program, words, log):
    found = write_program(tmp_path, "flower-superlink", program)
    monkeypatch.setattr(module, "find_executable", lambda name: found)
    if not log:
        monkeypatch.setattr(module, "START_PATIENCE", 0.3)
    (tmp_path / "scratch").mkdir()
    link = SuperLink(tmp_path / "scratch")
    with pytest.raises(FlowerError, match=words):
        link.start()
    link.stop()
    assert link.log().endswith(log)


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
