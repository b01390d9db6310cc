"""User objects for a run in this process, by names that can be used like those of plug-ins.

A name is `object:LABEL_TOKEN` with a random token, so no other process has the object or an object of that name.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from protosphere.core.errors import ModelError, SettingError

MODULE = "object"
# the settings that may name an object, and the syntax for the same in a file
FILES = {"strategy": "./mine.py", "models": "./mine.py:NAME"}
_objects: dict[str, object] = {}


def keep(value: object, label: str) -> str:
    """Keep an object for the lifetime of this process, and return its name; an object that is kept already keeps its
    name."""
    for name, known_object in _objects.items():
        if known_object is value:
            return f"{MODULE}:{name}"
    name = f"{label}_{secrets.token_hex(4)}"
    _objects[name] = value
    return f"{MODULE}:{name}"


def is_object(name: str) -> bool:
    """Whether a name is that of an object, in this process or another."""
    return name.startswith(f"{MODULE}:")


def is_kept(name: str) -> bool:
    """Whether this process has the object with that name."""
    return name.partition(":")[2] in _objects


def label_of(name: str) -> str:
    """The object's label for messages."""
    return name.partition(":")[2].rpartition("_")[0]


def find(name: str) -> object:
    """The object with that name.

    Raises:
        ModelError: this process does not have it.
    """
    if not is_kept(name):
        raise ModelError(
            f"{name!r} is an object that was passed to protosphere.run in another process, and only that process can "
            "continue its run; to resume elsewhere, or for a run over Flower, on Ray or with several processes, put "
            "it into a file and name that, as in ./mine.py:NAME."
        )
    return _objects[name.partition(":")[2]]


def refuse_objects(settings: Mapping[str, Any], what: str) -> None:
    """Refuse names of objects for a run with processes of its own, which lack these objects.

    Args:
        what: the part of the run that has such processes, in words that continue "but".

    Raises:
        SettingError: names the setting, the object and the remedy.
    """
    for setting, file in FILES.items():
        for name in str(settings.get(setting, "")).split(","):
            if is_object(name.strip()):
                raise SettingError(
                    f'setting `{setting}` is the object "{label_of(name)}", which exists in this process only, but '
                    f'{what}; put it into a file and name that, as in {setting}="{file}".'
                )
