"""Worker processes of an in-process run whose own process is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

from experiments.runtime import grid as local_grid
from experiments.runtime.processes import processes

ROOT = Path(local_grid.__file__).resolve().parents[2]
RUN = """
from experiments.runtime.grid import run_in_process
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
    table = processes()
    children = {pid: entry.began for pid, entry in table.items() if entry.parent == process.pid}
    process.kill()
    process.wait()
    assert len(children) >= 2

    def alive():
        now = processes()
        return [pid for pid, began in children.items() if pid in now and now[pid].began == began]

    deadline = time.monotonic() + 30
    while alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive() == []
