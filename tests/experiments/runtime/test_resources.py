"""What a simulated client may be given: no more than this machine has."""

import os
from contextlib import nullcontext

import pytest

from experiments.runtime.launch import check_resources
from federation.settings import SettingError


@pytest.mark.parametrize(
    ("cpus", "gpus", "there", "words"),
    [
        (0, 0.0, 0, "--cpus-per-client is 0, but this machine has 4; give a whole number from 1"),
        (5, 0.0, 0, "--cpus-per-client is 5"),
        (1, 0.5, 0, "--gpus-per-client is 0.5, but this machine has 0 CUDA GPUs"),
        (1, 2.5, 2, "--gpus-per-client is 2.5, but this machine has 2 CUDA GPUs"),
        (1, -1.0, 2, "--gpus-per-client is -1"),
        (4, 2.0, 2, ""),
        (1, 0.25, 2, ""),
    ],
)
def test_resources_that_are_not_there_are_refused(cpus, gpus, there, words, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    with pytest.raises(SettingError, match=words) if words else nullcontext():
        check_resources(cpus, gpus)
