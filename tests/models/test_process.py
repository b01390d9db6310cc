"""What a fresh process makes and loads: the same bits with other threads, and no library that it does not need."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from protosphere import models

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["resnet8", "tiny_cnn", "perceptron"]
# optional or slow to load: text encoders, torchvision's networks, torch's compiler
UNWANTED = ["transformers", "torchvision", "torch._dynamo"]
SCRIPT = f"""
import hashlib, json, sys, torch; from protosphere import models
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
print(json.dumps([digests, [name for name in {UNWANTED} if name in sys.modules]]))
"""


def test_another_process_with_other_threads_makes_the_same_bits_and_loads_nothing_unwanted() -> None:
    threads = "1" if torch.get_num_threads() > 1 else "2"
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    command = [sys.executable, "-c", SCRIPT]
    there = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    digests, loaded = json.loads(there.stdout)
    states = [models.build(name, (1, 8, 8), 16, 5, 7).state_dict() for name in NAMES]
    mine = [b"".join(state[key].numpy().tobytes() for key in sorted(state)) for state in states]
    assert digests == [hashlib.sha256(content).hexdigest() for content in mine]
    assert loaded == []
