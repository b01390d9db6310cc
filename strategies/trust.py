"""Code in a received folder: whoever passes on a run's or a client's folder could put any code into it, and reading the
folder would run that code. It runs only with the reader's consent (`--trust`). Code elsewhere on this machine is the
reader's own."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.settings import shown
from protosphere.models.text import reads_text
from protosphere.strategies import unpacked

NAMED = ("strategy", "dataset", "encoder")
COMPANION = "companion"  # the suffix of a method's setting for the second model that clients share
ENCODES = ("model", "models", "encoder", COMPANION)  # settings in which a hub's name is no module

Named = tuple[str, str]  # a setting, and its value


def named(settings: Mapping[str, Any]) -> list[Named]:
    """The settings that may name code.

    Raises:
        SettingError: `own-settings` is invalid.
    """
    names: list[Named] = []
    # as stored and as read: code is loaded from either
    for config in (settings, unpacked(settings)):
        names += [(name, str(config.get(name, ""))) for name in NAMED]
        names += [("models", name.strip()) for name in str(config.get("models", "")).split(",")]
        names += [(name, str(value)) for name, value in config.items() if name.endswith(f".{COMPANION}")]
    return list(dict.fromkeys(names))


def code_among(names: Iterable[Named]) -> list[Named]:
    """Those values that name a user's code."""
    code_names = []
    for name, code in names:
        is_text_model = name.rpartition(".")[2] in ENCODES and reads_text(code)
        if plugins.is_plugin(code) and not is_text_model:
            code_names.append((name, code))
    return code_names


def untrusted(folder: Path, names: Iterable[Named]) -> list[Named]:
    """Those that name code inside the folder. Nothing is run to find out."""
    inside = folder.resolve()
    code_names = []
    for name, code in code_among(names):
        files = [file.resolve() for file in plugins.files_of(code)]
        if any(file.is_relative_to(inside) and file.exists() for file in files):
            code_names.append((name, code))
    return code_names


def refuse_untrusted(folder: Path, names: Iterable[Named], trust: bool) -> None:
    """Refuse a folder that contains code, unless it is trusted.

    Args:
        names: the settings and values that would be loaded.
        trust: whether the reader has said that the code may run.

    Raises:
        SettingError: names the code, and how to allow it.
    """
    if trust:
        return
    for name, code in untrusted(folder, names):
        raise SettingError(
            f"{folder} names code that lies in it, `{name}` = {shown(code)}; where you know what it does, say --trust "
            "(in Python trust=True), and it is run."
        )
