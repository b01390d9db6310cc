"""Code that a received folder brings along: who gives a run's or a client's folder away could put any into it, and
reading the folder would run that. It runs with its reader's word alone (`--trust`). Code that lies elsewhere on this
machine is its reader's own.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.settings import shown
from protosphere.models.text import reads_text
from protosphere.strategies import unpacked

NAMED = ("strategy", "dataset", "encoder")
COMPANION = "companion"  # a method's setting, after the method's name and a dot: the second model that clients share
ENCODES = ("model", "models", "encoder", COMPANION)  # where a hub's name is no module's

Named = tuple[str, str]  # a setting, and what stands there


def named(settings: Mapping[str, Any]) -> list[Named]:
    """Where settings may name code.

    Raises:
        SettingError: `own-settings` holds what it may not.
    """
    names: list[Named] = []
    # as they are kept and as they are read: code is loaded from either
    for config in (settings, unpacked(settings)):
        names += [(name, str(config.get(name, ""))) for name in NAMED]
        names += [("models", name.strip()) for name in str(config.get("models", "")).split(",")]
        names += [(name, str(value)) for name, value in config.items() if name.endswith(f".{COMPANION}")]
    return list(dict.fromkeys(names))


def code_among(names: Iterable[Named]) -> list[Named]:
    """Those that are somebody's own code."""
    code_names = []
    for name, code in names:
        is_text_model = name.rpartition(".")[2] in ENCODES and reads_text(code)
        if plugins.is_plugin(code) and not is_text_model:
            code_names.append((name, code))
    return code_names


def untrusted(folder: Path, names: Iterable[Named]) -> list[Named]:
    """Those that are code which lies in the folder. Nothing is run to tell."""
    inside = folder.resolve()
    code_names = []
    for name, code in code_among(names):
        files = [file.resolve() for file in plugins.files_of(code)]
        if any(file.is_relative_to(inside) and file.exists() for file in files):
            code_names.append((name, code))
    return code_names


def refuse_untrusted(folder: Path, names: Iterable[Named], trust: bool) -> None:
    """Go no further with a folder that brings code along.

    Args:
        names: what the folder has that would be loaded. trust: whether the folder's reader said that it may run.

    Raises:
        SettingError: names the code, and how to let it run.
    """
    if trust:
        return
    for name, code in untrusted(folder, names):
        raise SettingError(
            f"{folder} names code that lies in it, `{name}` = {shown(code)}; where you know what it does, say --trust "
            "(in Python trust=True), and it is run."
        )
