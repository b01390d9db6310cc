"""Somebody's own code, by name or by file: `package.module:NAME`, `./file.py` or `./file.py:NAME`.

A file is loaded by its path, so that folders beside it may be called like ours.
"""

import hashlib
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from models.split import ModelError, words_of

MISSING = "a file that it names is not to be had here, or cannot be loaded"


def is_file(name: str) -> bool:
    """Whether a name is that of a Python file, perhaps with the name of what it holds."""
    return parted(name)[0].endswith(".py")


def is_plugin(name: str) -> bool:
    """Whether a name stands for somebody's own code, by file or by module."""
    module, colon, attribute = name.partition(":")
    return is_file(name) or (bool(colon) and all(p.isidentifier() for p in [*module.split("."), attribute]))


def absolute(name: str) -> str:
    """A file's name with its path made absolute; any other name as it is."""
    path, attribute = parted(name)
    if not is_file(name):
        return name
    whole = os.path.abspath(Path(path).expanduser())
    return f"{whole}:{attribute}" if attribute else whole


def stem(name: str) -> str:
    """What a plug-in is called in words and folders: a file's name without its folder, or the name in its module."""
    path, attribute = parted(name)
    if is_file(name):
        return Path(path).stem
    return attribute or name


def placeless(name: str) -> str:
    """A file's name without its folder, which differs from machine to machine; any other name as it is."""
    path, attribute = parted(name)
    return f"{Path(path).name}{':' * bool(attribute)}{attribute}" if is_file(name) else name


def digest(name: str) -> str:
    """Of a file's content, in a few letters; "" of any other name.

    Raises:
        ModelError: the file cannot be read.
    """
    if not is_file(name):
        return ""
    return hashlib.blake2b(_content(Path(parted(name)[0]).expanduser()), digest_size=8).hexdigest()


def load(name: str, usual: str) -> object:
    """What a name stands for.

    Args:
        usual: the name in a file, where none is given.

    Raises:
        ModelError: there is no such file, module or name, or it cannot be run; one sentence.
    """
    path, attribute = parted(name)
    try:
        module = _of_file(Path(path).expanduser()) if is_file(name) else importlib.import_module(path)
        return getattr(module, attribute or usual)
    except ModelError:
        raise
    except Exception as error:
        words = words_of(error) or type(error).__name__
        how = f"cannot be loaded: {type(error).__name__}: {words}" if is_file(name) else f"cannot be imported: {words}"
        if is_file(name) and isinstance(error, AttributeError):
            how = f"holds no {attribute or usual}: name what it holds after a colon, as in {path}:NAME ({words})"
        raise ModelError(f"{name!r} {how}.", told=MISSING) from error


def _of_file(path: Path) -> ModuleType:
    """A file's module, loaded once a content."""
    code = _content(path)
    known = f"protosphere_plugin_{path.stem}_{hashlib.blake2b(code + str(path).encode(), digest_size=8).hexdigest()}"
    if known in sys.modules:
        return sys.modules[known]
    module = ModuleType(known)
    module.__file__ = str(path)
    # dataclasses look their module up by name
    sys.modules[known] = module
    try:
        # not by an import, which keeps compiled files by whole seconds: what runs is what the digest is of
        exec(compile(code, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[known]
        raise
    return module


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"the file {str(path)!r} cannot be read ({error.strerror or error}): give the path of a Python file.",
            told=MISSING,
        ) from None


def parted(name: str) -> tuple[str, str]:
    """Path or module, and the name in it."""
    before, colon, after = name.rpartition(":")
    return (before, after) if colon and after.isidentifier() else (name, "")
