"""Families of processes: found whole, stopped whole, and nobody else's."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from protosphere.launch import processes
from protosphere.launch.processes import Family, Interrupted, interruptible
from tests.waiting import comes

# a child in a session of its own, whose child goes on after its parent's death, as Ray's daemons do
TREE = """
import os, subprocess, sys, time
apart = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); {then}"
subprocess.Popen([sys.executable, "-c", apart.format(then="import time; time.sleep(600)")], start_new_session=True)
subprocess.Popen([sys.executable, "-c", apart.format(then="")])
time.sleep(600)
"""
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
SAID = "import sys; print([sys.stdin.read(), *sys.argv[1:]])"


def start(family, code):
    return family.start([sys.executable, "-c", code], stdout=subprocess.PIPE)


def whole(family):
    """Whether TREE stands: the leader, its child in another session and that one's child, and the orphan."""
    table = processes.processes()
    members = family.members() & table.keys()
    orphans = [pid for pid in members if table[pid].parent not in {*members, os.getpid()}]
    return len(members) == 4 and len(orphans) == 1


def test_a_family_knows_sessions_of_descendants_and_orphans_also_after_their_ancestor_died():
    family = Family()
    leader = start(family, TREE)
    try:
        assert comes(lambda: whole(family))
        leader.kill()
        leader.wait()
        assert len(family.members()) == 3
    finally:
        family.stop(5)
    assert family.members() == set()


def test_what_ignores_sigterm_is_killed():
    family = Family()
    stubborn = start(family, STUBBORN)
    assert stubborn.stdout.readline() == "ready\n"
    family.stop(0.5)
    assert stubborn.returncode == -signal.SIGKILL


def test_others_are_left_alone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        family, theirs = Family(), Family()
        start(family, "import time; time.sleep(600)")
        neighbour = start(theirs, "import time; time.sleep(600)")
        assert other.pid not in family.members()
        assert neighbour.pid not in family.members()
        family.stop(5)
        assert other.poll() is None
        assert neighbour.poll() is None
        theirs.stop(5)
        other.stdin.close()


def test_a_number_that_a_stranger_got_is_his():
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    with stranger:
        family = Family()
        family.adopt(stranger.pid)
        assert family.members() == {stranger.pid}
        # as if ours of that number had begun at another time, and ended
        family._sessions[stranger.pid] = "long ago"
        assert family.members() == set()
        family.stop(0.2)
        assert stranger.poll() is None
        stranger.stdin.close()


def test_every_process_says_its_id_and_has_an_empty_stdin():
    hear, tell = os.pipe()
    family = Family(tell)
    child = family.start([sys.executable, "-c", SAID, "a b", "$c"], stdout=subprocess.PIPE)
    os.close(tell)
    with os.fdopen(hear) as heard:
        # to the end: once it is the command it holds the pipe no more
        assert heard.read() == f"{child.pid}\n"
    assert child.communicate(timeout=20)[0] == "['', 'a b', '$c']\n"


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
