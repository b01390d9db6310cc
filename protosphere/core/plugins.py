"""A user's code by name: `package.module:NAME`, `./file.py`, `./file.py:NAME`, or an `object:NAME` of this process.

A folder from somebody else may contain code: ask strategies/trust.py before reading one.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from protosphere.core import objects
from protosphere.core.errors import ModelError, words_of


def parted(name: str) -> tuple[str, str]:
    """Path or module, and the name in it."""
    before, colon, after = name.rpartition(":")
    return (before, after) if colon and after.isidentifier() else (name, "")


def is_file(name: str) -> bool:
    """Whether a name is that of a Python file, possibly followed by the name of an object in it."""
    return parted(name)[0].endswith(".py")


def is_plugin(name: str) -> bool:
    """Whether a name refers to a user's code, by file or module."""
    module, colon, attribute = name.partition(":")
    return is_file(name) or (bool(colon) and all(p.isidentifier() for p in [*module.split("."), attribute]))


def absolute(name: str) -> str:
    """A file's name with an absolute path; any other name unchanged."""
    path, attribute = parted(name)
    if not is_file(name):
        return name
    full_path = os.path.abspath(Path(path).expanduser())
    return f"{full_path}:{attribute}" if attribute else full_path


def stem(name: str) -> str:
    """A plug-in's name in messages and folder names: a file's name without its folder, or the name in its module."""
    path, attribute = parted(name)
    if is_file(name):
        return Path(path).stem
    return objects.label_of(name) if objects.is_object(name) else attribute or name


def placeless(name: str) -> str:
    """A file's name without its folder, which differs between machines; any other name unchanged."""
    path, attribute = parted(name)
    return f"{Path(path).name}{':' * bool(attribute)}{attribute}" if is_file(name) else name


def digest(name: str) -> str:
    """A short digest of a file's content; "" for any other name. Raises ModelError if it cannot be read."""
    if not is_file(name):
        return ""
    return hashlib.blake2b(_content(Path(parted(name)[0]).expanduser()), digest_size=8).hexdigest()


def load(name: str, usual: str) -> object:
    """Load the object that a name refers to; `usual` is its name in a file, if none is given.

    Raises ModelError if there is no such file, module or name, or its code fails.
    """
    if objects.is_object(name):
        return objects.find(name)
    path, attribute = parted(name)
    file = Path(path).expanduser() if is_file(name) else None
    try:
        module = importlib.import_module(path) if file is None else _load_file(file)
        return getattr(module, attribute or usual)
    except ModelError:
        raise
    except Exception as error:
        kind = type(error).__name__
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        if file is not None and isinstance(error, AttributeError) and not lines:
            problem = f"holds no {attribute or usual}: name what it holds after a colon, as in {path}:NAME"
        else:
            line = f" (line {lines[-1]})" if lines else ""
            problem = f"cannot be loaded: {kind}: {words_of(error) or kind}{line}"
        raise ModelError(f"{name!r} {problem}.") from error


def is_here(name: str) -> bool:
    """Whether the file, or the module's package, exists, so that loading the name could run code."""
    if objects.is_object(name):
        return objects.is_kept(name)
    path, _ = parted(name)
    if is_file(name):
        return Path(path).expanduser().exists()
    try:
        return importlib.util.find_spec(path.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return True


def files_of(name: str) -> list[Path]:
    """The files that loading a name would run, as far as they are found without running any; of a module, this
    includes its packages."""
    path, _ = parted(name)
    if is_file(name):
        return [Path(path).expanduser()]
    files: list[Path] = []
    places: list[str] | None = None
    module_name = ""
    try:
        for part in path.split("."):
            module_name = f"{module_name}.{part}".lstrip(".")
            # `importlib.util.find_spec` would import the package of a dotted name
            if places is None:
                spec = importlib.util.find_spec(module_name)
            else:
                spec = importlib.machinery.PathFinder.find_spec(module_name, places)
            if spec is None:
                break
            places = list(spec.submodule_search_locations or ())
            if spec.origin is not None and spec.has_location:
                files.append(Path(spec.origin))
    except (ImportError, AttributeError, ValueError):
        pass
    return files


def _load_file(path: Path) -> ModuleType:
    """A file's module, loaded once per content."""
    code = _content(path)
    suffix = hashlib.blake2b(code + str(path).encode(), digest_size=8).hexdigest()
    module_name = f"protosphere_plugin_{path.stem}_{suffix}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    module = ModuleType(module_name)
    module.__file__ = str(path)
    # dataclasses look their module up by name
    sys.modules[module_name] = module
    try:
        # not by an import, whose compiled files may be older than the content of the digest
        exec(compile(code, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ModelError(f"the file {str(path)!r} cannot be read ({reason}): give the path of a Python file.") from None
