"""The method that docs/adding-a-method.md prints works as printed."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

import strategies
from experiments.runtime.grid import run_in_process

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-method.md"


def test_the_printed_method_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path))
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert source is not None
    path = tmp_path / "shrunk.py"
    path.write_text(source.group(1))
    spec = importlib.util.spec_from_file_location("strategies.shrunk", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "strategies.shrunk", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(strategies.METHODS, "shrunk", "strategies.shrunk")

    config = {"strategy": "shrunk", "shrunk.beta": 1.0, "rounds": 2, "models": "tiny_perceptron"}
    folder = run_in_process(config, clients=3, show=lambda line: None)

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 2
    # beta = 1 moves every prototype onto the common mean: all targets of the last round coincide
    first, *others = last_download(folder)
    assert all((first - other).abs().max() < 1e-6 for other in others)


def last_download(folder: Path) -> list[Tensor]:
    """The vectors that went down last."""
    return list(load_file(folder / "checkpoint.safetensors")["download/-1/vectors"])
