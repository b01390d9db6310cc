"""What the trials of a comparison read that is somebody's own, local data and code: it is to be the same for all."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from protosphere.comparison.trials import Trial
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.files import replacing
from protosphere.core.paths import is_every, is_path, listed
from protosphere.strategies.trust import named

FILE = "sources.json"


def refuse_changed(folder: Path, trials: Sequence[Trial]) -> None:
    """Note the sources of a comparison's trials in its folder; where they are noted already, hold them against that.

    Raises:
        SettingError: one has changed since the first trial, or is not there any more.
        OSError: the note cannot be written.
    """
    file = folder / FILE
    digests = {source: _digest_of(source) for source in sorted(_list_sources(trials))}
    if not file.exists():
        with replacing(file) as temporary:
            temporary.write_text(json.dumps(digests, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return
    for source, digest in json.loads(file.read_bytes()).items():
        if digests.get(source) != digest:
            raise SettingError(
                f"{source} has changed since {folder.name} was started, so its finished trials would be compared with "
                "trials of something else; put it back, or start a new comparison."
            )


def _list_sources(trials: Iterable[Trial]) -> set[str]:
    sources = set()
    for trial in trials:
        sources |= {name for _, name in named(trial.settings) if plugins.is_file(name)}
        items = listed(str(trial.settings["dataset"]))
        sources |= {item for item in items if is_path(item) and not plugins.is_file(item)}
    return sources


def _digest_of(source: str) -> str:
    """Of code its content, of data the names, sizes and times of its files; "" where there is nothing."""
    if plugins.is_file(source):
        return plugins.digest(source) if plugins.is_here(source) else ""
    place = Path(source).expanduser()
    place = place.parent if is_every(source) else place
    lines = []
    for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if path.is_file():
            found = path.stat()
            lines.append(f"{os.path.relpath(path, place)} {found.st_size} {found.st_mtime_ns}")
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else ""
