"""What Flower is given: settings as TOML, an environment, executables; and what is said when it does not start."""

import http.server
import sys
import threading
import tomllib

import pytest
from flwr.common.config import flatten_dict

from protosphere.launch import superlink
from protosphere.launch.connection import FlowerError, as_toml, find_executable
from protosphere.launch.superlink import SuperLink


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


@pytest.fixture
def scratch(tmp_path):
    """The folder of one SuperLink."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


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
def test_a_superlink_that_does_not_start_is_reported_with_its_last_words(
    tmp_path, scratch, monkeypatch, program, words, log
):
    found = command(tmp_path, "flower-superlink", program)
    monkeypatch.setattr(superlink, "find_executable", lambda name: found)
    if not log:
        monkeypatch.setattr(superlink, "START_PATIENCE", 0.3)
    started = SuperLink(scratch)
    with pytest.raises(FlowerError, match=words):
        started.start()
    started.stop()
    assert SuperLink.read_log(scratch) == log
    assert started._family.members() == set()


def test_flower_gets_no_proxy_to_this_machine_and_no_cluster_but_the_one_that_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("no_proxy", "internal.example")
    monkeypatch.setenv("PROTOSPHERE_HOME", "relative")
    monkeypatch.chdir(tmp_path)
    environment = superlink._environment(tmp_path / "scratch")
    assert "RAY_ADDRESS" not in environment
    assert environment["no_proxy"] == environment["NO_PROXY"] == "internal.example,127.0.0.1,localhost"
    # the SuperLink works in another folder
    assert environment["PROTOSPHERE_HOME"] == str(tmp_path / "relative")
    assert environment["FLWR_HOME"] == str(tmp_path / "scratch" / "home")
    # where a Ray of our own keeps its session
    assert environment["RAY_TMPDIR"] == str(tmp_path / "scratch")
    joined = superlink._environment(tmp_path, "10.0.0.2:6379")
    assert (joined["RAY_ADDRESS"], "RAY_TMPDIR" in joined) == ("10.0.0.2:6379", False)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_health_is_asked_without_a_proxy(status, healthy, monkeypatch):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert superlink._is_healthy(server.server_port) is healthy
        finally:
            server.shutdown()
    assert not superlink._is_healthy(server.server_port)
