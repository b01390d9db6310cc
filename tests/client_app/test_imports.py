"""A deployment starts a process a message: what clients do not use is not to be loaded there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"scipy", "sklearn", "datasets", "flwr_datasets", "torchvision", "matplotlib", "ray", "torch._dynamo"}
HEAVY |= {"tensorboard", "wandb", "mlflow", "PIL", "protosphere.serving", "protosphere.reports"}


# what ends last is what was registered first
CODE = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count(), gc.isenabled()))
import protosphere.client_app.app, protosphere.strategies.protonorm
print(*sys.modules)
class Model: pass
model = Model()
model.itself, model.diary = model, open(sys.argv[1], "w")
model.diary.write("kept by nothing but itself")
"""


def test_a_client_loads_nothing_heavy_before_it_needs_it_and_ends_without_looking_through_what_it_has_loaded(tmp_path):
    """Python's collector of garbage is on while it works, and has nothing to look at when it ends; what
    a user's own code has written is in its file all the same."""
    diary = tmp_path / "diary"
    done = subprocess.run([sys.executable, "-c", CODE, diary], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, end = done.stdout.splitlines()
    assert "protosphere.client_app.app" in loaded.split()
    assert not HEAVY & set(loaded.split())
    frozen, collects = end.split()
    assert int(frozen) > 100_000
    assert collects == "True"
    assert diary.read_text() == "kept by nothing but itself"
