"""Where clients train: a device by its name, if this machine has it."""

import torch
from torch import Tensor

from protosphere.core.errors import SettingError

NAMES = {"cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}  # of accelerators, for people


def device_of(name: str, where: str) -> torch.device:
    """The device of a name that settings allow; "auto" is CUDA where there is any, else the CPU.

    Args:
        where: what named it, as the start of a sentence.

    Raises:
        SettingError: this machine does not have it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    count, kind = count_of(device.type), NAMES[device.type]
    if not count:
        raise SettingError(f'{where} "{name}", but this machine has no {kind}; use "auto" or "cpu".')
    if (device.index or 0) >= count:
        raise SettingError(
            f'{where} "{name}", but this machine has {count} {kind} device{"s" * (count > 1)}, from {device.type}:0 '
            'on; use one of those, "auto" or "cpu".'
        )
    return device


def count_of(kind: str) -> int:
    """How many devices of a kind this machine has."""
    module = torch.get_device_module(kind)
    return int(module.device_count()) if module.is_available() else 0


def exact_on(device: torch.device) -> torch.device:
    """Where to compute in float64 what belongs to a device: there, or on the CPU if the device cannot."""
    lacks = device.type == "mps" or (device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64)
    return torch.device("cpu") if lacks else device


def exact(tensor: Tensor) -> Tensor:
    """The tensor where float64 can be computed with."""
    return tensor.to(exact_on(tensor.device))
