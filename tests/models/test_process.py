"""What a fresh process loads when it makes models and trains them: no library that it does not need."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, torch; from protosphere import models
from protosphere.models.optimiser import EagerSGD
from protosphere.models.small import SMALL
from protosphere.models.text import Tokens
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
print(*sys.modules)
"""


def test_text_encoders_torchvision_and_torch_s_compiler_are_not_loaded() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # optional, or slow to load
    assert not {"transformers", "torchvision", "torch._dynamo"} & set(done.stdout.split())
