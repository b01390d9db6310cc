"""Converts settings from Python names, `protonorm__gamma=10`, to setting names: `protonorm.gamma`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, shown

Value = Scalar | os.PathLike[str] | Sequence[str]


def settings_of(mapping: Mapping[str, Value] | None, keywords: Mapping[str, Value]) -> dict[str, Any]:
    """Settings by name.

    Args:
        mapping: settings by their own names or by keyword names.
        keywords: `__` stands for a dot and `_` for a dash; they take precedence over the mapping.
    """
    if mapping is not None and not (isinstance(mapping, Mapping) and all(isinstance(name, str) for name in mapping)):
        raise SettingError(f"settings is {shown(mapping)}, but it is a mapping of names to values.")
    return {setting(name): plain(value) for source in (mapping or {}, keywords) for name, value in source.items()}


def setting(name: str) -> str:
    """`protonorm__gamma` to `protonorm.gamma`, `feature_dim` to `feature-dim`."""
    return name.replace("__", ".").replace("_", "-")


def plain(value: Any) -> Any:
    """A value as settings take it: an absolute path as text, names joined by commas, a NumPy number as Python's. Any
    other value is returned unchanged."""
    if isinstance(value, os.PathLike):
        return os.path.abspath(Path(value).expanduser())
    if isinstance(value, list | tuple) and value and all(isinstance(item, str | os.PathLike) for item in value):
        return ",".join(map(plain, value))
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value
