"""Devices by name."""

import pytest
import torch

from protosphere.core.devices import device_of
from protosphere.core.errors import SettingError


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        ("auto", {}, "cpu"),
        ("auto", {"mps": 1, "xpu": 1}, "cpu"),
        ("auto", {"cuda": 1}, "cuda"),
        ("cpu", {}, "cpu"),
        ("cuda:1", {"cuda": 2}, "cuda:1"),
        ("mps", {"mps": 1}, "mps"),
        ("xpu", {"xpu": 1}, "xpu"),
        ("cuda", {"mps": 1}, 'here is "cuda", but this machine has no CUDA'),
        ("mps", {"cuda": 1}, 'here is "mps", but this machine has no MPS'),
        ("cuda:2", {"cuda": 2}, 'here is "cuda:2", but this machine has 2 CUDA devices, from cuda:0 on'),
        ("xpu:1", {"xpu": 1}, 'here is "xpu:1", but this machine has 1 XPU device, from xpu:0 on'),
    ],
)
def test_a_device_is_there_or_the_refusal_names_it(name, there, said, monkeypatch):
    for kind in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(f"torch.{kind}.is_available", lambda kind=kind: kind in there)
        monkeypatch.setattr(f"torch.{kind}.device_count", lambda kind=kind: there.get(kind, 0))
    if "here" not in said:
        assert device_of(name, "here is") == torch.device(said)
        return
    with pytest.raises(SettingError) as caught:
        device_of(name, "here is")
    assert str(caught.value).startswith(said)
