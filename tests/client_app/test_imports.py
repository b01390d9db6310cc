"""What a fresh process loads and makes: a deployment starts one a message, and what clients do not use is not to be
loaded there; the same bits with other threads."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from protosphere import models

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"scipy", "sklearn", "datasets", "flwr_datasets", "torchvision", "matplotlib", "ray", "torch._dynamo"}
HEAVY |= {"tensorboard", "wandb", "mlflow", "PIL", "protosphere.serving", "protosphere.reports"}
# optional or slow to load: text encoders, torchvision's networks, torch's compiler
UNWANTED = {"transformers", "torchvision", "torch._dynamo"}
NAMES = ["resnet8", "tiny_cnn", "perceptron"]
# what ends last is what was registered first
CODE = f"""
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count(), gc.isenabled()))
import protosphere.client_app.app, protosphere.strategies.protonorm
print(*sys.modules)

import hashlib, json, torch
from protosphere import models
from protosphere.models.optimiser import EagerSGD
from protosphere.models.small import SMALL
from protosphere.models.text import Tokens
digests = []
for name in {NAMES}:
    state = models.build(name, (1, 8, 8), 16, 5, 7).state_dict()
    digests.append(hashlib.sha256(b"".join(state[key].numpy().tobytes() for key in sorted(state))).hexdigest())
for name in SMALL: models.build(name, (1, 8, 8), 4, 3, 0)
models.model_for(",".join([*models.FAMILIES, "somebody.networks:make"]), 3)
Tokens("hf:a/b?trainable=2", 8)
module = torch.nn.Linear(3, 2)
optimiser = EagerSGD(module.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    optimiser.zero_grad(set_to_none=True)
    module(torch.ones(4, 3)).square().mean().backward()
    optimiser.step()
optimiser.load_state_dict(optimiser.state_dict())
print(json.dumps(digests))
print(*sys.modules)

class Model: pass
model = Model()
model.itself, model.diary = model, open(sys.argv[1], "w")
model.diary.write("kept by nothing but itself")
"""


def test_a_client_loads_what_it_needs_makes_the_bits_that_others_make_and_ends_without_looking_through_it(tmp_path):
    """Python's collector of garbage is on while it works, and has nothing to look at when it ends; what
    a user's own code has written is in its file all the same."""
    diary = tmp_path / "diary"
    environment = os.environ | {"OMP_NUM_THREADS": "1" if torch.get_num_threads() > 1 else "2"}
    command = [sys.executable, "-c", CODE, diary]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    loaded, digests, loaded_by_models, end = done.stdout.splitlines()
    assert "protosphere.client_app.app" in loaded.split()
    assert not HEAVY & set(loaded.split())

    states = [models.build(name, (1, 8, 8), 16, 5, 7).state_dict() for name in NAMES]
    mine = [b"".join(state[key].numpy().tobytes() for key in sorted(state)) for state in states]
    assert json.loads(digests) == [hashlib.sha256(content).hexdigest() for content in mine]
    assert not UNWANTED & set(loaded_by_models.split())

    frozen, collects = end.split()
    assert int(frozen) > 100_000
    assert collects == "True"
    assert diary.read_text() == "kept by nothing but itself"
