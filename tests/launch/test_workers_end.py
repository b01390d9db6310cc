"""Worker processes of an in-process run whose own process is killed."""

import os
import subprocess
import sys
from pathlib import Path

from protosphere.launch import grid as local_grid
from tests.integration.watched import alive, descendants
from tests.waiting import comes

ROOT = Path(local_grid.__file__).resolve().parents[2]
RUN = """
from protosphere.launch.grid import run_in_process
if __name__ == "__main__":
    settings = {"rounds": 1000, "max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron"}
    run_in_process(settings, clients=4, workers=2, show=lambda line: print(line, flush=True))
"""


def test_workers_do_not_outlive_a_killed_run(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RUN)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round"):
            break
    children = descendants(process.pid)
    del children[process.pid]
    process.kill()
    process.wait()
    assert len(children) >= 2

    assert comes(lambda: not alive(children))
