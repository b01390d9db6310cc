"""A SuperLink that somebody runs: what is said and stopped when it is lost sight of, with a stand-in for `flwr`."""

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from protosphere.launch import connection as module
from protosphere.launch.connection import Connection, FlowerError

STAND_IN = """#!/bin/sh
echo "$@" >> {told}
case $1 in
    run) echo "Successfully started run 7"; exit {stream} ;;
    ls) {ls} ;;
    stop) {stop} ;;
esac
"""
RUNNING = """echo '{"runs": [{"status": "running", "status-details": "N/A"}]}'"""
FINISHED = """echo '{"runs": [{"status": "finished:completed", "status-details": "N/A"}]}'"""
STOPPED = """echo '{"success": true, "run-id": "7"}'"""
REFUSED = """echo '{"success": false, "error-message": "no"}'; exit 1"""


@pytest.fixture
def connected(tmp_path, monkeypatch):
    """connected(ls=, stop=, stream=): a connection whose run was submitted and whose stream has ended, and a function
    that tells how `flwr` was called since."""
    monkeypatch.setattr(module, "STATUS_PATIENCE", 2.0)
    told = tmp_path / "told"

    def make(ls=RUNNING, stop=STOPPED, stream=1):
        flwr = tmp_path / "flwr"
        flwr.write_text(STAND_IN.format(told=told, ls=ls, stop=stop, stream=stream))
        flwr.chmod(flwr.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(module, "find_executable", lambda name: str(flwr))
        (tmp_path / "cwd").mkdir()
        connection = Connection(tmp_path, os.open(os.devnull, os.O_WRONLY), "clinics")
        connection.run(Path("/app"), {}, lambda line: None)
        told.unlink()
        return connection, lambda: [line.split()[0] for line in told.read_text().splitlines()] if told.exists() else []

    return make


@pytest.mark.parametrize(
    ("ls", "seen"), [(RUNNING, "still calls it running"), ("exit 1", "the SuperLink does not answer any more")]
)
def test_a_run_that_only_we_lost_sight_of_is_not_stopped(ls, seen, connected):
    connection, told = connected(ls)
    with pytest.raises(FlowerError, match=seen) as caught:
        connection.status()
    assert "`flwr log 7 clinics` follows it, `flwr stop 7 clinics` ends it" in str(caught.value)
    assert connection.stop() == ""
    assert set(told()) == {"ls"}


@pytest.mark.parametrize(
    ("ls", "stream", "ended"), [(FINISHED, "exec sleep 600", True), (RUNNING, "sleep 2; echo the end", False)]
)
def test_a_stream_that_has_died_without_a_word_is_left_when_the_run_is_over(ls, stream, ended, tmp_path, monkeypatch):
    flwr = tmp_path / "flwr"
    flwr.write_text(
        f'#!/bin/sh\ncase $1 in\n    run) echo "Successfully started run 7"; {stream} ;;\n    ls) {ls} ;;\nesac\n'
    )
    flwr.chmod(0o755)
    monkeypatch.setattr(module, "find_executable", lambda name: str(flwr))
    monkeypatch.setattr(module, "SILENCE", 0.3)
    (tmp_path / "cwd").mkdir()
    connection = Connection(tmp_path, os.open(os.devnull, os.O_WRONLY), "clinics")
    lines = []
    watched = threading.Thread(target=connection.run, args=(Path("/app"), {}, lines.append))
    watched.start()
    watched.join(60)
    assert not watched.is_alive()
    assert ("the end\n" in lines) is not ended
    connection.stop()


def test_when_the_stream_has_ended_nobody_looks_any_more(connected, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.3)
    before = set(threading.enumerate())
    _, told = connected(FINISHED)
    time.sleep(1.0)
    assert told() == []
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("╭─ Error ─╮\n│ [code: 15] Invalid run configuration. │\n╰─╯", "[code: 15] Invalid run configuration."),
        ("no box", "`flwr run` ended with exit code 3."),
    ],
)
def test_a_run_that_flower_does_not_take_is_refused_in_its_words(tmp_path, monkeypatch, said, reason):
    (tmp_path / "flwr").write_text(f"#!/bin/sh\necho '{said}'\nexit 3\n")
    (tmp_path / "flwr").chmod(0o755)
    monkeypatch.setattr(module, "find_executable", lambda name: str(tmp_path / "flwr"))
    (tmp_path / "cwd").mkdir()
    with pytest.raises(FlowerError) as caught:
        Connection(tmp_path, os.open(os.devnull, os.O_WRONLY), "clinics").run(Path("/app"), {}, lambda line: None)
    assert str(caught.value) == f"Flower did not start the run: {reason}"


@pytest.mark.parametrize(
    ("ls", "stop", "advice", "asked"),
    [
        (RUNNING, STOPPED, "", ["stop"]),
        # what cannot be stopped is named, but not where it has just ended
        (RUNNING, REFUSED, "flwr stop 7 clinics", ["stop", "ls"]),
        (FINISHED, REFUSED, "", ["stop", "ls"]),
    ],
)
def test_a_run_that_is_on_is_stopped(connected, ls, stop, advice, asked):
    connection, told = connected(ls=ls, stop=stop)
    assert connection.stop() == advice
    assert told() == asked


def test_a_finished_run_is_not_stopped(connected):
    connection, told = connected(ls=FINISHED, stream=0)
    assert connection.status() == ("finished:completed", "")
    assert connection.stop() == ""
    assert told() == ["ls"]
