"""Real processes and their watcher: nothing of them lives on, however we end, and nobody else's is touched."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from protosphere.launch import processes
from protosphere.launch.processes import Interrupted, descendants, interruptible
from tests.waiting import comes

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by Linux' subreaper")
# as Flower's SuperExec one leads a session of its own; as Ray's daemons one has lost its parent; one ignores SIGTERM
TREE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeps, start_new_session=True)
subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({sleeps!r}, start_new_session=True)"])
print("up", flush=True)
time.sleep(600)
"""
FRONT = """
import os, signal, subprocess, sys, time
from protosphere.launch import processes
watcher = processes.start([sys.executable, "-c", sys.argv[2]], 0.3, sys.argv[1], stdout=subprocess.PIPE)
watcher.stdout.readline()
print(watcher.pid, *processes.descendants(watcher.pid), flush=True)
time.sleep(600)
"""


@pytest.fixture
def started(monkeypatch):
    """started(code): a watcher of that program, and all that has come of it once it says a line."""
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    watchers = []

    def start(code):
        watcher = processes.start([sys.executable, "-c", code], 0.3, stdout=subprocess.PIPE)
        watchers.append(watcher)
        assert watcher.stdout.readline() == "up\n"
        return watcher, descendants(watcher.pid)

    yield start
    processes.stop(*watchers)


def are_gone(pids):
    return comes(lambda: not any(map(is_alive, pids)))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_stopped_goes_with_other_sessions_orphans_and_what_ignores_sigterm(started):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    watcher, tree = started(TREE)
    assert len(tree) == 3
    processes.stop(watcher)
    assert watcher.returncode == 128 + signal.SIGKILL
    assert not any(map(is_alive, tree))
    assert stranger.poll() is None
    stranger.communicate("")


def test_what_has_ended_takes_along_all_that_it_has_left(started):
    watcher, tree = started(TREE.rstrip().removesuffix("time.sleep(600)"))
    assert watcher.wait(30) == 0
    assert not any(map(is_alive, tree))


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("", 0)])
def test_the_exit_code_is_the_command_s_and_its_stdin_is_empty(ends, code):
    words = [sys.executable, "-c", f"import os, sys; print([sys.stdin.read(), *sys.argv[1:]], flush=True); {ends}"]
    watcher = processes.start([*words, "a b", "$c"], stdout=subprocess.PIPE)
    assert watcher.communicate(timeout=30)[0] == "['', 'a b', '$c']\n"
    assert watcher.returncode == code


def test_all_goes_with_a_front_door_that_is_killed_and_so_does_its_scratch_folder(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-c", FRONT, str(scratch), TREE]
    # a group of its own stands for a terminal's
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as front:
        watcher, *tree = map(int, front.stdout.readline().split())
        assert len(tree) == 3
        # what a terminal sends is no matter of the watcher's
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(watcher, number)
        os.killpg(front.pid, signal.SIGKILL)
        # nobody who lives on holds its stdout: a pipe into `tail` ends
        assert front.communicate(timeout=60)[0] == ""
    assert are_gone([watcher, *tree])
    assert not scratch.exists()


def test_a_pipe_that_was_meant_for_the_command_is_not_the_watcher_s():
    ours, theirs = os.pipe()
    command = [sys.executable, "-c", f"import os, signal; os.write({theirs}, b'x'); os.close({theirs}); signal.pause()"]
    watcher = processes.start(command, pass_fds=(theirs,), stderr=subprocess.DEVNULL)
    os.close(theirs)
    with os.fdopen(ours, "rb") as reader:
        assert reader.read() == b"x"
    processes.stop(watcher)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_raises_once_and_handlers_come_back(number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup, and stays ignored")
    before = signal.getsignal(number)
    with interruptible():
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(number)
        signal.raise_signal(number)  # the clean-up after the first is not disturbed
    assert (caught.value.number, caught.value.name) == (number, number.name)
    assert signal.getsignal(number) is before


def test_a_deafened_process_goes_on_and_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as deafen:
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            deafen()
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_takes_no_handlers():
    seen = []

    def enter():
        with interruptible() as deafen:
            deafen()
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
