"""Real processes and their watcher: nothing of them lives on, and nobody else's is touched. Also where their starter is
killed: tests/deploy/test_with_superexec.py, and with its folder tests/integration/test_flwr_run.py."""

import os
import signal
import subprocess
import sys

import pytest

from protosphere.launch import processes
from protosphere.launch.processes import Interrupted, interruptible
from tests.integration.watched import alive, descendants
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by Linux' subreaper")
# as Flower's SuperExec one leads a session of its own; as Ray's daemons one has lost its parent; one ignores SIGTERM
TREE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeps, start_new_session=True)
subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({sleeps!r}, start_new_session=True)"])
print("up", flush=True)
"""
WAITS = "time.sleep(600)\n"
# is slow to end, and tells whether its own worker was there until then
SLOW = """
import signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def end(*_):
    time.sleep(0.5)
    print("alone" if worker.poll() is not None else "whole", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
# both end at once
LEAVES = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLOW!r}]); {WAITS}"
BOTH = f"""
import subprocess, sys, time
for code in {[STUBBORN, LEAVES]!r}:
    subprocess.Popen([sys.executable, "-c", code])
{WAITS}"""


@pytest.mark.parametrize(("end", "code"), [(WAITS, 128 + signal.SIGKILL), ("", 0)])
def test_a_command_that_is_stopped_or_has_ended_takes_along_all_that_came_of_it(end, code):
    """Other sessions, orphans, and what ignores SIGTERM; nobody else's."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    watcher = processes.start([sys.executable, "-c", TREE + end], 0.3, stdout=subprocess.PIPE)
    assert watcher.stdout.readline() == "up\n"
    tree = descendants(watcher.pid)
    assert len(tree) >= 2
    if end:
        # what a terminal sends is no matter of the watcher's
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(watcher.pid, number)
        processes.stop(watcher)
    assert watcher.wait(PATIENCE) == code
    assert alive(tree) == set()
    assert stranger.poll() is None
    stranger.communicate(b"")


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_the_command_s_and_its_stdin_is_empty(ends, code):
    words = [sys.executable, "-c", f"import os, sys; print([sys.stdin.read(), *sys.argv[1:]], flush=True); {ends}"]
    watcher = processes.start([*words, "a b", "$c"], stdout=subprocess.PIPE)
    assert watcher.communicate(timeout=PATIENCE)[0] == "['', 'a b', '$c']\n"
    assert watcher.returncode == code


def test_who_is_slow_to_end_has_its_workers_and_its_time_beside_one_that_does_not_listen():
    """Also where its parent has ended before: as the workers of a forkserver, for which its resource tracker waits."""
    watcher = processes.start([sys.executable, "-c", BOTH], 3.0, stdout=subprocess.PIPE)
    assert watcher.stdout.readline() == "up\n"
    processes.stop(watcher)
    assert watcher.stdout.read() == "whole\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_raises_once_and_handlers_come_back(number):
    before = signal.signal(number, signal.default_int_handler)
    with interruptible():
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(number)
        signal.raise_signal(number)  # the clean-up after the first is not disturbed
    assert (caught.value.number, caught.value.name) == (number, number.name)
    assert signal.signal(number, before) is signal.default_int_handler


def test_a_deafened_process_goes_on_and_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible() as deafen:
        signal.raise_signal(signal.SIGHUP)
        deafen()
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, before)
