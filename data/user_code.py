"""Somebody's own code in a run's data: a callable that gives the rows, or one that deals them."""

import hashlib
from dataclasses import dataclass

from protosphere.core import plugins
from protosphere.core.errors import DataError, ModelError, public


@dataclass(frozen=True)
class OwnCode:
    """A callable, by `package.module:NAME`, `./file.py` or `./file.py:NAME`.

    Attributes:
        name: its name, of a file without the folder. place: as it is to be loaded. digest: of the file's content.
        usual: what a file's callable is called, where nothing else is said.
    """

    name: str
    place: str
    digest: str
    usual: str

    def __call__(self, *arguments: object) -> object:
        """What it returns.

        Raises:
            DataError: it cannot be loaded or called, or fails.
        """
        try:
            function = plugins.load(self.place, self.usual)
            if not callable(function):
                raise TypeError(f"it is of type {type(function).__name__}, which cannot be called")
            return function(*arguments)
        except DataError:
            raise
        except Exception as error:
            raise _make_error(self.name, error) from error


def own_code(name: str, usual: str) -> OwnCode | None:
    """The code that a setting names; None where it names none.

    Raises:
        DataError: its file cannot be read.
    """
    if not plugins.is_plugin(name):
        return None
    try:
        digest = plugins.digest(name) or _of_module(name)
    except (ModelError, ImportError, OSError, ValueError) as error:
        raise _make_error(plugins.placeless(name), error) from error
    return OwnCode(plugins.placeless(name), name, digest, usual)


def _of_module(name: str) -> str:
    # nothing is run for it: a report asks, too
    files = plugins.files_of(name)
    if not files:
        raise ImportError(f"there is no module {plugins.parted(name)[0]}")
    return hashlib.blake2b(files[-1].read_bytes(), digest_size=8).hexdigest() if files[-1].is_file() else ""


def _make_error(name: str, error: Exception) -> DataError:
    return DataError(
        f"{name!r} cannot be used ({type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}): it must be a "
        "callable of yours that can be imported here and gives what docs/data.md says.",
        public("user-code"),
    )
