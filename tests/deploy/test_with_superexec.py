"""The pair of a SuperNode, or a SuperLink, and its SuperExec: they end together, also where one does not listen."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import comes

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "with_superexec.py"
WAITS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


def begin(tmp_path, one, other, **options):
    """The process of the pair, and the ids of its two, which write them as their first act."""
    files = [tmp_path / "one", tmp_path / "other"]
    commands = [[sys.executable, "-c", code, str(file)] for code, file in zip((one, other), files, strict=True)]
    words = [sys.executable, "-P", str(SCRIPT), str(tmp_path), *commands[0], "::", *commands[1]]
    pair = subprocess.Popen(words, **options)
    assert comes(lambda: all(file.exists() and file.read_text() for file in files))
    return pair, [int(file.read_text()) for file in files]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc to look at processes in")
@pytest.mark.parametrize("stubborn", [(WAITS, WAITS), (STUBBORN, WAITS), (WAITS, STUBBORN), (STUBBORN, STUBBORN)])
def test_both_are_gone_when_it_has_ended_and_so_is_the_secret(tmp_path, stubborn):
    pair, pids = begin(tmp_path, *stubborn)
    pair.send_signal(signal.SIGTERM)
    pair.wait(20)
    assert [is_alive(pid) for pid in pids] == [False, False]
    assert list(tmp_path.glob("secret-*")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc to look at processes in")
@pytest.mark.parametrize("dying", [0, 1])
def test_when_one_ends_the_other_is_ended_and_the_exit_code_is_the_first_one_s(tmp_path, dying):
    pair, pids = begin(tmp_path, WAITS, WAITS)
    os.kill(pids[dying], signal.SIGKILL)
    assert pair.wait(20) == 128 + signal.SIGKILL
    assert not any(map(is_alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc to look at descriptors in")
def test_a_lock_that_it_was_given_is_held_by_both(tmp_path):
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    pair, pids = begin(tmp_path, WAITS, WAITS, pass_fds=(lock,))
    try:
        for pid in pids:
            assert os.readlink(f"/proc/{pid}/fd/{lock}") == str(tmp_path / "lock")
    finally:
        pair.terminate()
        pair.wait(20)
        os.close(lock)


def test_each_line_has_its_time_and_no_colours(tmp_path):
    coloured = "import sys; sys.stderr.write('\\x1b[92mINFO \\x1b[0m: begun\\n'); "
    says = coloured + "print('2026-11-27T05:08:43Z dated'); print('last')"
    words = [sys.executable, "-P", str(SCRIPT), str(tmp_path), sys.executable, "-u", "-c", says]
    done = subprocess.run(
        [*words, "::", sys.executable, "-c", WAITS, str(tmp_path / "other")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
    assert re.fullmatch(f"{time} INFO : begun", first)
    assert second == "2026-11-27T05:08:43Z dated"
    assert re.fullmatch(f"{time} last", third)
