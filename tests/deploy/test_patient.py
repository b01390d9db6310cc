"""A site whose key still counts as online waits, and says why; whoever starts it has nothing to start again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
REFUSAL = "ERROR : [code: 2004] Failed to activate SuperNode."
# refused so many times, as by a counter in a file, then it goes on
SUPERNODE = f"""
import pathlib, sys, time
count, refusals, code = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
print("attempt", number, flush=True)
if number <= refusals:
    print({REFUSAL!r}, file=sys.stderr)
    sys.exit(1)
if code < 0:
    time.sleep(60)
sys.exit(code)
"""


@pytest.fixture
def patient(tmp_path):
    """patient(refusals, code, pause, patience): the process that runs such a SuperNode."""
    program = tmp_path / "supernode.py"
    program.write_text(SUPERNODE)
    count = tmp_path / "count"

    def start(refusals, code, pause=0.05, patience=20.0):
        runner = (
            f"import sys; sys.path.insert(0, {str(DEPLOY)!r}); import patient; "
            f"patient.PAUSE, patient.PATIENCE = {pause}, {patience}; sys.exit(patient.main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", runner, sys.executable, program, count, str(refusals), str(code)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    start.count = count
    return start


@pytest.mark.parametrize(("refusals", "code"), [(0, 0), (0, 3), (2, 0), (2, 5)])
def test_a_refused_key_is_tried_again_and_anything_else_is_not(patient, refusals, code):
    process = patient(refusals, code)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.count("attempt") == refusals + 1
    assert said.count("[code: 2004]") == refusals
    assert errors.count("does not take this site's key") == refusals


def test_a_key_that_is_refused_for_too_long_ends_it(patient):
    process = patient(1000, 0, patience=0.5)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "it is not registered, or another SuperNode has it" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_supernode_and_ends_both(patient, number):
    process = patient(0, -1)
    deadline = time.monotonic() + 30
    while not patient.count.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=30)
    # Python ends by SIGINT as by an exception
    assert process.returncode in (128 + number, 1)


def test_a_signal_ends_the_wait_between_two_attempts(patient):
    process = patient(1000, 0, pause=60.0, patience=600.0)
    assert process.stderr is not None
    assert "counts as online" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 1
    assert patient.count.read_text() == "1"
    process.communicate()


def test_the_log_is_passed_on_while_it_runs(patient):
    process = patient(0, -1)
    assert process.stdout is not None
    assert process.stdout.readline() == "attempt 1\n"
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)


def test_a_supernode_goes_on_where_nobody_reads_what_it_says(tmp_path):
    """Far more than a pipe holds."""
    done = tmp_path / "done"
    speaker = f"import pathlib; [print('x' * 999, flush=True) for _ in range(999)]; pathlib.Path({str(done)!r}).touch()"
    command = [sys.executable, DEPLOY / "patient.py", sys.executable, "-c", speaker]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    try:
        process.wait(30)
    finally:
        process.kill()
    assert done.exists()
