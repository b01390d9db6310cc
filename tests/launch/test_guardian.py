"""What outlives us: real processes, killed as no handler could know of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protosphere.launch import guardian, processes
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import Family
from tests.waiting import comes

ROOT = Path(guardian.__file__).resolve().parents[2]
# A front door: starts a tree of four sessions, two leaders of which ignore SIGTERM, says all ids, and goes on.
FRONT = """
import sys, time
from pathlib import Path
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import Family
child = '''
import signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''
with guarded(Path(sys.argv[1])) as tell:
    family = Family(tell)
    log = open(sys.argv[1] + "/log", "w")
    for _ in range(2):
        family.start([sys.executable, "-c", child], stdout=log)
    while open(sys.argv[1] + "/log").read().count("up") < 2 or len(family.members()) < 4:
        time.sleep(0.05)
    print(*family.members(), flush=True)
    if sys.argv[2] == "stop":
        family.stop(0.2)
        print("stopped", flush=True)
    else:
        time.sleep(600)
"""
# Dies at the very moment at which a child was started and nobody was told of it in so many words.
AT_ONCE = """
import os, signal, sys
from pathlib import Path
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import Family
with guarded(Path(sys.argv[1])) as tell:
    child = Family(tell).start([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def scratch(tmp_path):
    """A folder that is to go with the processes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def front(code, *arguments, **options):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


def guardians(scratch):
    """The guardian of that folder, found by its command line."""
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=1) for line in listing.splitlines()]
    return {int(pid) for pid, line in lines if "protosphere.launch.guardian" in line and line.endswith(f" {scratch}")}


def gone(pids, folder=Path("/nowhere")):
    """Whether the processes and the folder go."""
    return comes(lambda: not pids & processes.processes().keys() and not folder.exists())


def test_all_goes_with_a_killed_front_door_and_nothing_else(scratch):
    family = Family()
    stranger = family.start([sys.executable, "-c", "import time; time.sleep(600)"])
    # a group of its own stands for a terminal's
    with front(FRONT, str(scratch), "stay", start_new_session=True) as process:
        started = set(map(int, process.stdout.readline().split()))
        assert len(started) == 4
        (guard,) = guardians(scratch)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP):
            os.kill(guard, number)
        os.killpg(process.pid, signal.SIGKILL)
        # nobody who lives on holds its stdout: a pipe into `tail` ends
        assert process.communicate(timeout=30)[0] == ""
    assert started | {guard} <= processes.processes().keys()
    os.kill(guard, signal.SIGCONT)
    assert gone(started | {guard}, scratch)
    assert stranger.poll() is None
    family.stop(5)


def test_a_child_is_known_from_its_first_moment(scratch):
    with front(AT_ONCE, str(scratch)) as process:
        child = int(process.stdout.readline())
    assert process.returncode == -signal.SIGKILL
    assert gone({child}, scratch)


def test_after_an_orderly_stop_the_guardian_has_gone(scratch):
    with front(FRONT, str(scratch), "stop") as process:
        started = set(map(int, process.stdout.readline().split()))
        assert process.stdout.readline() == "stopped\n"
    assert process.returncode == 0
    assert not started & processes.processes().keys()
    assert guardians(scratch) == set()


def test_without_a_guardian_the_work_goes_on(scratch):
    with guarded(scratch) as tell:
        (guard,) = guardians(scratch)
        os.kill(guard, signal.SIGKILL)
        family = Family(tell)
        assert gone({guard})
        child = family.start([sys.executable, "-c", "print('done')"], stdout=subprocess.PIPE)
        assert child.communicate(timeout=20)[0] == "done\n"
    assert child.returncode == 0
