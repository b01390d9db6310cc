"""What the trials of a comparison read that is somebody's own, local data and files of code: it stays the same."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from protosphere.comparison.trials import Trial
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.files import replacing
from protosphere.core.paths import is_every, is_path, listed
from protosphere.data.forms.folders import SCHEMA
from protosphere.strategies.trust import named

FILE = "sources.json"
BESIDE_A_FILE = ("classes.txt", SCHEMA)  # what a table or an archive is read with


def refuse_changed(folder: Path, trials: Sequence[Trial], finished: Sequence[Trial]) -> None:
    """Note in a comparison's folder what its trials read, and hold what finished trials have read against the note.

    Raises:
        SettingError: it has changed since, or is not there any more; or the note is damaged.
        OSError: the note cannot be written.
    """
    file = folder / FILE
    digests = {source: _digest_of(source) for source in sorted(_list_sources(trials))}
    noted = _read(file) if file.exists() else {}
    for source in sorted(_list_sources(finished)):
        if noted.get(source, digests[source]) != digests[source]:
            raise SettingError(
                f"{source} has changed since {folder.name} was started (a file's name, size or time, or code), so its "
                "finished trials would be compared with trials of something else; put it back, or start a new "
                "comparison."
            )
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(digests, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _read(file: Path) -> Mapping[str, str]:
    try:
        return dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise SettingError(f"{file} is damaged ({error}); remove it if nothing has changed.") from None


def _list_sources(trials: Iterable[Trial]) -> set[str]:
    sources = set()
    for trial in trials:
        sources |= {name for _, name in named(trial.settings) if plugins.is_file(name)}
        items = [*listed(str(trial.settings["dataset"])), str(trial.settings.get("partition-table", ""))]
        sources |= {item for item in items if is_path(item) and not plugins.is_file(item)}
    return sources


def _digest_of(source: str) -> str:
    """Of code its content, of data the names, sizes and times of its files; "" where there is nothing."""
    if plugins.is_file(source):
        return plugins.digest(source) if plugins.is_here(source) else ""
    place = Path(source).expanduser()
    place = place.parent if is_every(source) else place
    lines = []
    for path in sorted(_list_files(place)):
        found = path.stat()
        lines.append(f"{os.path.relpath(path, place)} {found.st_size} {found.st_mtime_ns}")
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else ""


def _list_files(place: Path) -> Iterator[Path]:
    """A file and what it is read with, or the files below a folder, as a reader sees them: none that is hidden, and
    those behind links."""
    if not place.is_dir():
        yield from (path for path in (place, *(place.with_name(name) for name in BESIDE_A_FILE)) if path.is_file())
        return
    visited = set()
    for root, folders, names in os.walk(place, followlinks=True):
        real = os.path.realpath(root)
        # a link may lead back
        folders[:] = [] if real in visited else [name for name in folders if not name.startswith(".")]
        visited.add(real)
        yield from (Path(root, name) for name in names if not name.startswith(".") and Path(root, name).is_file())
