"""Runs over Flower, with a stand-in for `flwr`: what is said and stopped when a SuperLink is lost sight of. Real ones:
tests/integration/test_flwr_run.py."""

import json
import signal
import socketserver
import ssl
import threading
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict
from typer.testing import CliRunner

from protosphere.cli.main import app as command_line
from protosphere.launch import flower as module
from protosphere.launch.flower import FlowerError, SuperLink, as_toml, describe_end, launch, obstacle
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
    """superlink(list=, stop=, run=): a connection by a stand-in for `flwr`, and what that was called for."""
    monkeypatch.setattr(module, "STATUS_PATIENCE", 0.0)
    calls = tmp_path / "calls"
    (tmp_path / "cwd").mkdir()
    links = []

    def make(list=RUNNING, stop=SUBMITTED, run=SUBMITTED):
        program = write_program(tmp_path, "flwr", STAND_IN.format(calls=calls, run=run, list=list, stop=stop))
        monkeypatch.setattr(module, "find_executable", lambda name: program)
        links.append(SuperLink(tmp_path, "clinics"))
        return links[0], lambda: calls.read_text().split()

    yield make
    links[0].stop()


@pytest.mark.parametrize(
    ("list", "stop", "status", "advice", "calls"),
    [
        # what only we lost sight of may go on, and is not stopped
        (RUNNING, SUBMITTED, "its status is running. If only this connection broke", "", ["list"]),
        ("exit 1", SUBMITTED, "its status is unknown. .* `flwr log 7 clinics` follows it, `flwr stop", "", ["list"]),
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


def test_a_superlink_that_does_not_start_is_reported_with_its_last_words(tmp_path, monkeypatch):
    path = write_program(tmp_path, "flower-superlink", "echo first; echo 'no database'; exit 3")
    monkeypatch.setattr(module, "find_executable", lambda name: path)
    (tmp_path / "scratch").mkdir()
    link = SuperLink(tmp_path / "scratch")
    with pytest.raises(FlowerError, match=r"did not start on port \d+ within 60 s; its last line is: no database\."):
        link.start()
    link.stop()


def test_flower_gets_no_proxy_to_this_machine_and_no_cluster_but_the_one_that_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("no_proxy", "internal.example")
    environment = SuperLink(tmp_path)._environment
    assert environment["no_proxy"] == environment["NO_PROXY"] == "internal.example,127.0.0.1,localhost"
    # where a Ray of our own keeps its session
    assert ("RAY_ADDRESS" in environment, environment["RAY_TMPDIR"]) == (False, str(tmp_path))
    joined = SuperLink(tmp_path, ray="10.0.0.2:6379")._environment
    assert (joined["RAY_ADDRESS"], "RAY_TMPDIR" in joined) == ("10.0.0.2:6379", False)


# --- a run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "details", "lines", "words"),
    [
        ("failed", "ServerApp failed with ...", ["[protosphere error] client 3: why.", "Traceback"], "client 3: why."),
        # the last is why it ended
        ("failed", "", ["[protosphere error] first.", "[protosphere error] last.", "end"], "last."),
        ("failed", "it raised 'bias'.", ["KeyError"], "Flower reports the run as finished:failed: it raised 'bias'."),
        ("stopped", "", [], "Flower reports the run as finished:stopped."),
        ("completed", "", [], "the run ended without a summary in {folder}."),
    ],
)
def test_why_a_run_failed(status, details, lines, words, tmp_path):
    assert describe_end(f"finished:{status}", details, lines, tmp_path) == words.format(folder=tmp_path)
    # a run of another machine may have left its summary there
    assert bool(describe_end(f"finished:{status}", details, lines, None)) == (status != "completed")


@pytest.fixture
def staged(monkeypatch):
    """staged(method=what it does): a SuperLink that does nothing else."""

    def stage(**methods):
        for name in ("start", "submit", "stream", "status", "stop"):
            monkeypatch.setattr(SuperLink, name, methods.get(name, lambda self, *_: ()))

    return stage


def raise_error(error):
    raise error


def write_runs(results):
    for name, number in (("old", "7"), ("new", "8")):
        (results / name).mkdir(parents=True)
        (results / name / "status.json").write_text(json.dumps({"flower_run": number}))


@pytest.mark.parametrize(("settings", "number"), [({}, "8"), ({"resume": "{old}"}, "9"), ({"resume": "a-name"}, "8")])
def test_a_runs_folder_is_found_by_flowers_number_of_it_or_is_the_one_resumed(
    settings, number, app, tmp_path, home, staged
):
    results, folders = tmp_path / "results", []
    write_runs(results)

    def submit(self, *_):
        self.flower_run = number
        folders.append(self._scratch)
        raise FlowerError("no.")

    staged(submit=submit)
    settings = {name: value.format(old=results / "old") for name, value in settings.items()}
    outcome = launch(settings | {"results-dir": str(results)}, clients=1, show=print, app=app)
    folder = results / ("new" if number == "8" else "old")
    assert (outcome.folder, outcome.message) == (folder, "no.")
    assert not folders[0].exists()


def test_only_lines_of_ours_are_shown_and_the_log_has_all_of_them(app, tmp_path, home, staged):
    write_runs(tmp_path / "results")
    (tmp_path / "results" / "new" / "summary.json").touch()
    lines = [
        "INFO :      Starting Flower Simulation",
        "[protosphere] results: /a/b c",
        "(ClientAppActor pid=7) [protosphere] forged",
        "[protosphere]   client 0: indented",
        "[protosphere error] the truth, which the outcome tells.",
    ]
    status = lambda self: ("finished:completed", "")  # noqa: E731
    staged(submit=lambda self, *_: setattr(self, "flower_run", "8"), stream=lambda self: lines, status=status)
    for verbose, expected in ((False, ["results: /a/b c", "  client 0: indented"]), (True, lines)):
        shown = []
        settings = {"results-dir": str(tmp_path / "results")}
        outcome = launch(settings, clients=1, show=shown.append, verbose=verbose, app=app)
        assert (outcome.ok, shown) == (True, expected)
    assert (outcome.folder / "run.log").read_text().splitlines() == lines * 2


def test_a_run_elsewhere_that_could_not_be_stopped_is_told(app, home, staged):
    staged(submit=lambda *_: raise_error(Interrupted(signal.SIGTERM)), stop=lambda self: ADVICE)
    outcome = launch({}, clients=1, show=print, app=app, connection="clinics")
    message = f"the run could not be stopped and may still be running: try `{ADVICE}`."
    assert (outcome.signal, outcome.message) == (signal.SIGTERM, message)


def test_settings_come_back_from_toml_as_they_were():
    settings = {"rounds": 5, "alpha": 1e-05, "protonorm.gamma": 100.0, "shared-init": False, "a.b.c": -1}
    settings["dataset"] = '/a "b"/c\\d\'é\n\t\x7f\x01😀 # x = 1'
    read = flatten_dict(tomllib.loads(as_toml(settings)))
    assert read == settings
    assert {name: type(value) for name, value in read.items()} == {n: type(v) for n, v in settings.items()}


# --- why a SuperLink is out of reach ---------------------------------------------------------------------------


class Answer(socketserver.BaseRequestHandler):
    status = "200 OK"

    def handle(self):
        self.request.recv(4096)
        self.request.sendall(f"HTTP/1.1 {self.status}\r\ncontent-length: 0\r\n\r\n".encode())


@contextmanager
def serving(folder=None):
    """A server on a port of its own, over TLS with the folder's certificate, or plain."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)
    server.handle_error = lambda *_: None
    if folder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "superlink.crt", folder / "superlink.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with server:
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """connect(port, authority): makes `clinics` the connection to that port, without an authority one without TLS."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))

    def make(port, authority):
        way = f'root-certificates = "{authority}/ca.crt"' if authority else "insecure = true"
        (tmp_path / "config.toml").write_text(f'[superlink.clinics]\naddress = "127.0.0.1:{port}"\n{way}\n')

    return make


def test_what_keeps_a_connection_from_its_superlink(certified, connect, monkeypatch):
    """Each of the words stands in docs/deployment.md. No proxy is asked."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    page = (module.ROOT / "docs" / "deployment.md").read_text()
    good, other = certified(-10, 100), certified(-10, 100)
    for server, authority, words in (
        (good, good, ""),
        (certified(-10, -1), None, "certificate has expired"),
        (certified(-10, 100, "other.example"), None, "certificate is not valid for"),
        (good, other, "local issuer certificate"),
        (good, Path("/nowhere"), "No such file or directory"),
        (None, good, "wrong version number"),
        (None, None, ""),
    ):
        with serving(server) as port:
            connect(port, authority or server)
            said = obstacle("clinics")
        assert words in said, said
        assert bool(said) == bool(words)
        assert words in page
    assert "Connection refused" in obstacle("clinics")
    assert obstacle("another") == ""


def test_a_superlink_without_tls_is_healthy_where_it_says_so(monkeypatch):
    for status in ("200 OK", "404 Not Found"):
        monkeypatch.setattr(Answer, "status", status)
        with serving() as port:
            assert module.is_healthy(port) == (status == "200 OK")


def test_a_superlink_that_cannot_be_used_is_one_sentence_and_nothing_is_left(certified, connect, home):
    folder = certified(-10, -1)
    with serving(folder) as port:
        connect(port, folder)
        result = CliRunner().invoke(command_line, ["run", "--on", "superlink:clinics"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "certificate has expired" in result.stderr
    assert not list(home.glob("results/*"))
