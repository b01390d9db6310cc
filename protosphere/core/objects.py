"""Objects of one's own that this process was given for a run, by names that stand where those of plug-ins do.

A name is `object:LABEL_TOKEN`, whose token is drawn: no other process has the object, nor another by its name.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from protosphere.core.errors import ModelError, SettingError

MODULE = "object"
# the settings that may name one, and how they name what a file holds
FILES = {"strategy": "./mine.py", "models": "./mine.py:NAME"}
_objects: dict[str, object] = {}


def keep(value: object, label: str) -> str:
    """Keep an object for as long as this process lives, and give the name by which plug-ins are loaded: one that was
    given before has the one that it had."""
    for name, known_object in _objects.items():
        if known_object is value:
            return f"{MODULE}:{name}"
    name = f"{label}_{secrets.token_hex(4)}"
    _objects[name] = value
    return f"{MODULE}:{name}"


def is_object(name: str) -> bool:
    """Whether a name is that of an object, of this process or of another."""
    return name.startswith(f"{MODULE}:")


def is_kept(name: str) -> bool:
    """Whether this process was given the object of that name."""
    return name.partition(":")[2] in _objects


def label_of(name: str) -> str:
    """What a person calls the object."""
    return name.partition(":")[2].rpartition("_")[0]


def find(name: str) -> object:
    """The object of that name.

    Raises:
        ModelError: this process was not given it.
    """
    if not is_kept(name):
        raise ModelError(
            f"{name!r} is an object that was given to protosphere.run in another process, which alone can go on with "
            "its run; to resume elsewhere, or for a run over Flower, on Ray or of several processes, put it into a "
            "file and name that, as in ./mine.py:NAME."
        )
    return _objects[name.partition(":")[2]]


def refuse_objects(settings: Mapping[str, Any], what: str) -> None:
    """Refuse names of objects where a run has processes of its own, which have no such objects.

    Args:
        what: has such processes, in words that go on from "but".

    Raises:
        SettingError: names the setting, the object and the remedy.
    """
    for setting, file in FILES.items():
        for name in str(settings.get(setting, "")).split(","):
            if is_object(name.strip()):
                raise SettingError(
                    f'setting `{setting}` is the object "{label_of(name)}", which the process that was given it alone '
                    f'has, but {what}; put it into a file and name that, as in {setting}="{file}".'
                )
