"""Where runs lie: the results folder, a run in it by its name, `latest`, or the number by which Flower knows it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from protosphere.core.errors import SettingError
from protosphere.core.files import LARGEST_RECORD, read_whole
from protosphere.core.home import home
from protosphere.core.settings import shown


def results_root(results_dir: str) -> Path:
    """The folder that holds the runs' folders."""
    return Path(os.path.expanduser(results_dir)) if results_dir else home() / "results"


def find_run(name: str, results_dir: str) -> Path:
    """The folder of a finished or cut run: a path, a name in the results folder, `latest`, or the number that Flower
    knows it by.

    Raises:
        SettingError: when there is none.
    """
    root = results_root(results_dir)
    if name == "latest":
        # a run that was cut before its first checkpoint is none that could be resumed
        runs = [
            path.parent for path in root.glob("*/settings.json") if (path.parent / "checkpoint.safetensors").exists()
        ]
        if not runs:
            raise SettingError(f'setting `resume` is "latest", but {root} holds no run; start one first.')
        return max(runs, key=lambda run: (run / "settings.json").stat().st_mtime_ns).resolve()
    for path in (Path(os.path.expanduser(name)), root / name):
        if path.is_absolute() and (path / "settings.json").exists():
            # the last part of the path is the run's key, which `..` or a link would hide
            return path.resolve()
    if name.isdecimal() and (folder := folder_of(name, root)):
        return folder.resolve()
    raise SettingError(
        f"setting `resume` is {shown(name)}, but no run with a settings.json is there or in {root}; give a run's "
        'folder, its name in the results folder, its number in `flwr ls`, or "latest".'
    )


def own_folder(folder: Path, name: str) -> Path:
    """A folder that this program keeps inside a run's or a comparison's, to delete or write something there: who gave
    the whole away could have put a link to files of its reader's in its place.

    Raises:
        SettingError: it is a link.
    """
    place = folder / name
    if place.is_symlink():
        raise SettingError(f"{place} is a link to elsewhere; take it away.")
    return place


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Hold a run's or a comparison's folder. The operating system lets go of it when the process dies.

    Args:
        what: what holds it elsewhere, if it is held: "a run".

    Raises:
        SettingError: another process holds it, or it cannot be written.
    """
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise SettingError(
            f"{folder} is being written by {what} that has not ended; wait for it, or stop it first."
        ) from None
    except OSError as error:
        raise SettingError(f"{folder} cannot be written ({error.strerror}).") from None
    try:
        yield
    finally:
        lock.release()


def folder_of(flower_run: str, results: Path, most: int | None = None) -> Path | None:
    """The folder of the run that Flower knows by this number; None where none says so.

    Args:
        results: the results folder.
        most: how many of the newest folders to look into, by their names, which begin with the time.
    """
    for path in sorted(results.glob("*/status.json"), reverse=True)[:most] if flower_run else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(read_whole(path, LARGEST_RECORD))["flower_run"] == flower_run:
                return path.parent
    return None
