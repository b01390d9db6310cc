"""An app as Flower is to bundle it, without what else lies in its folder.

`flwr run` resolves the path of every file below the folder, each time: with a virtual environment in it, as `make` puts
one there, 84,000 files and 7.5 processor seconds, without it 0.1.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protosphere.core.flower import bundle_of
from protosphere.launch.connection import FlowerError

# what Flower takes, and what tells it what to leave out
KINDS = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
NAMES = ("LICENSE", ".gitignore")


def bare(app: Path, target: Path) -> Path:
    """Copy the files from which Flower chooses into the folder `target`, which it gives.

    Raises:
        FlowerError: one cannot be read or written.
    """
    into = os.path.realpath(target)
    for place, folders, files in os.walk(app):
        # links are none of them for Flower either; hidden folders and environments hold none
        folders[:] = [folder for folder in folders if folder[0] != "." and not _is_foreign(os.path.join(place, folder))]
        # TMPDIR may be in the app
        folders[:] = [folder for folder in folders if os.path.realpath(os.path.join(place, folder)) != into]
        to = target / Path(place).relative_to(app)
        with _explain_errors(place, app, target):
            to.mkdir(parents=True, exist_ok=True)
        for name in files:
            if (name.endswith(KINDS) or name in NAMES) and not os.path.islink(os.path.join(place, name)):
                # another run's, such as one in its results, may go meanwhile
                with suppress(FileNotFoundError), _explain_errors(os.path.join(place, name), app, target):
                    shutil.copyfile(os.path.join(place, name), to / name)
    return target


def digest_of(app: Path) -> str:
    """SHA-256 of the bundle that `flwr run` makes of an app, which sites may list (`deploy/supernode.sh --allow-app`).

    Raises:
        FlowerError: a file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="protosphere-") as folder:
        return hashlib.sha256(bundle_of(bare(app, Path(folder)))).hexdigest()


@contextmanager
def _explain_errors(path: str, app: Path, target: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FlowerError(
            f"{path} cannot be copied for Flower's bundle ({error.strerror or error}); let it be read, take it out of "
            f"{app}, or make room in {target.parent}."
        ) from None


def _is_foreign(folder: str) -> bool:
    return folder.endswith("__pycache__") or os.path.exists(os.path.join(folder, "pyvenv.cfg"))
