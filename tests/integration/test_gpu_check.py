"""`make gpu-check` on a CPU, at its small size."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--size", "small"]


@pytest.mark.soak
def test_every_step_prints_its_results():
    output = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", output, re.MULTILINE)
    assert rows[:2] == [("what", "of", "result"), ("contract and golden figures", "float32", rows[1][2])]
    assert rows[1][2].startswith("1 passed, ")
    assert [of for _, of, _ in rows[2:]] == ["ours, made-up images", "tiny models, workers=2"]
    assert all(float(re.match(r"[\d.]+", result)[0]) > 0 for *_, result in rows[2:])


def test_a_step_ends_when_its_time_is_up():
    command = [*COMMAND, "--steps", "workers", "--minutes", "0.02"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.endswith("| workers | the rest | not finished after 1 s |\n")
