"""User objects of this process, by names that can be used like those of plug-ins: `object:LABEL_TOKEN`.

The token is random, so no other process has an object of that name.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from protosphere.core.errors import ModelError, SettingError

PREFIX = "object:"
# the settings that may name an object, and the syntax for the same in a file
FILES = {"strategy": "./mine.py", "models": "./mine.py:NAME"}
_objects: dict[str, object] = {}  # by name


def keep(value: object, label: str) -> str:
    """Keep an object for the lifetime of this process, and return its name."""
    for name, known_object in _objects.items():
        if known_object is value:
            return name
    name = f"{PREFIX}{label}_{secrets.token_hex(4)}"
    _objects[name] = value
    return name


def is_object(name: str) -> bool:
    """Whether a name is that of an object, in this process or another."""
    return name.startswith(PREFIX)


def is_kept(name: str) -> bool:
    """Whether this process has the object with that name."""
    return name in _objects


def label_of(name: str) -> str:
    """The object's label for messages."""
    return name.removeprefix(PREFIX).rpartition("_")[0]


def find(name: str) -> object:
    """The object with that name. Raises ModelError if this process does not have it."""
    if name not in _objects:
        raise ModelError(
            f"{name!r} is an object that was passed to protosphere.run in another process, and only that process can "
            "continue its run; for resuming elsewhere, or a run with other processes, put it into a file and name "
            "that, as in ./mine.py:NAME."
        )
    return _objects[name]


def refuse_objects(settings: Mapping[str, Any], reason: str) -> None:
    """Refuse objects for a run with other processes; `reason` names these, and continues "but" in the SettingError."""
    for setting, file in FILES.items():
        for name in str(settings.get(setting, "")).split(","):
            if is_object(name.strip()):
                raise SettingError(
                    f'setting `{setting}` is the object "{label_of(name)}", which exists in this process only, but '
                    f'{reason}; put it into a file and name that, as in {setting}="{file}".'
                )
