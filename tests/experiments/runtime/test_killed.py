"""`protosphere run`, killed in the middle: nothing of it lives on, and the run goes on as if it had never been cut."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from experiments.runtime import launch as module
from tests.integration.watched import alive, descendants

ROOT = Path(module.__file__).resolve().parents[2]
PATIENCE = 180.0  # seconds for a first round
SETTINGS = {"rounds": 20, "max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron,tiny_cnn", "device": "cpu"}


@pytest.fixture
def place():
    """A temporary folder with a path short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.integration
def test_a_killed_run_ends_whole_and_can_be_resumed(place, home, run, metrics):
    said = " ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in SETTINGS.items()
    )
    command = [sys.executable, "-m", "cli.main", "run", "--flower", "--clients", "3", "-c", said]
    seen, output = {}, place / "output"
    deadline = time.monotonic() + PATIENCE
    with output.open("w") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=stream, stderr=stream, env=os.environ | {"TMPDIR": str(place)}
        )
    while "| after  0:" not in output.read_text():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        seen = descendants(process.pid, seen)
        time.sleep(0.01)
    seen = descendants(process.pid, seen)
    # counted before the kill: the guardian is quick to end them
    many = len(alive(seen))
    process.kill()
    process.wait()
    assert many > 8, "guardian, SuperLink, SuperExec, the simulation, Ray's daemons and actors"

    deadline = time.monotonic() + 60
    while alive(seen) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(seen) == set()
    assert list(place.glob("protosphere-*")) == []

    (folder,) = (home / "results").iterdir()
    finished = len((folder / "metrics.jsonl").read_text().splitlines())
    assert 1 <= finished < SETTINGS["rounds"]
    whole = metrics(run(SETTINGS | {"clients": 3}, clients=3))
    again = [sys.executable, "-m", "cli.main", "run", "--resume", str(folder)]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert metrics(folder) == whole
