"""A deployment starts a process a message: what clients do not use is not to be loaded there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"scipy", "sklearn", "datasets", "flwr_datasets", "torchvision", "matplotlib", "ray", "torch._dynamo"}
HEAVY |= {"tensorboard", "wandb", "mlflow", "PIL", "serving", "reports"}


def test_a_client_loads_nothing_heavy_before_it_needs_it():
    code = "import sys, client_app.app, strategies.protonorm; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "client_app.app" in loaded
    assert not HEAVY & loaded


ENDS = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count(), gc.isenabled())); import {}"


@pytest.mark.parametrize("module", ["client_app.app", "server_app.app"])
def test_a_process_ends_without_looking_through_all_that_it_has_loaded(module):
    """The collector is on while it works, and has nothing to look at when it ends."""
    command = [sys.executable, "-c", ENDS.format(module)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    frozen, collects = done.stdout.split()
    assert int(frozen) > 100_000
    assert collects == "True"
