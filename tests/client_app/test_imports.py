"""A deployment starts a process a message: what clients do not use is not to be loaded there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"scipy", "sklearn", "datasets", "flwr_datasets", "torchvision", "matplotlib", "ray", "torch._dynamo"}
HEAVY |= {"tensorboard", "wandb", "mlflow", "PIL", "serving", "reports"}


def test_a_client_loads_nothing_heavy_before_it_needs_it():
    code = "import sys, client_app.app, strategies.protonorm; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "client_app.app" in loaded
    assert not HEAVY & loaded
