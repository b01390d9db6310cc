"""Devices by name, if this machine has them."""

import torch
from torch import Tensor

from protosphere.core.errors import SettingError


def device_of(name: str, where: str) -> torch.device:
    """The device with a name that settings allow; "auto" is CUDA if available, else the CPU.

    `where` is the source of the name, as the start of the SettingError if this machine lacks the device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    module, kind = torch.get_device_module(device.type), device.type.upper()
    count = module.device_count() if module.is_available() else 0
    if (device.index or 0) >= count:
        raise SettingError(
            f'{where} "{name}", but this machine has {count or "no"} {kind} devices; use another, "auto" or "cpu".'
        )
    return device


def exact_on(device: torch.device) -> torch.device:
    """The device for float64 computations on a device's tensors: the device itself, or the CPU if it has no float64."""
    lacks = device.type == "mps" or (device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64)
    return torch.device("cpu") if lacks else device


def exact(tensor: Tensor) -> Tensor:
    """The tensor on a device that has float64."""
    return tensor.to(exact_on(tensor.device))
