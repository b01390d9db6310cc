"""Digests of the local data and files of code that trials read: finished trials must have read the same."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from protosphere.comparison.trials import Trial
from protosphere.core import plugins
from protosphere.core.errors import DataError, ModelError, SettingError
from protosphere.core.files import replacing
from protosphere.core.paths import is_path, listed
from protosphere.data.cache import make_key
from protosphere.data.domains import locate_all
from protosphere.data.forms.folders import Folder
from protosphere.data.partition.table import table_digest
from protosphere.strategies.trust import named

FILE = "sources.json"


def refuse_changed(folder: Path, trials: Sequence[Trial], finished: Sequence[Trial]) -> None:
    """Store the digests of what trials read; refuse to go on if what finished trials have read has changed."""
    file = folder / FILE
    digests: dict[str, str] = {}
    for source, digest in sorted(_list_sources(trials).items()):
        try:
            digests[source] = digest(source)
        except (DataError, ModelError):
            # it is missing or damaged
            digests[source] = ""
    stored: Mapping[str, str] = {}
    if file.exists():
        try:
            stored = dict(json.loads(file.read_bytes()))
        except (ValueError, TypeError) as error:
            raise SettingError(f"{file} is damaged ({error}); remove it if nothing has changed.") from None
    for source in sorted(_list_sources(finished)):
        if stored.get(source, digests[source]) != digests[source]:
            raise SettingError(
                f"{source} has changed since {folder.name} was started (a file's name, size or time, or code), so its "
                "finished trials would be compared with trials of something else; put it back, or start a new "
                "comparison."
            )
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(digests, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _list_sources(trials: Iterable[Trial]) -> dict[str, Callable[[str], str]]:
    """The settings' values that name somebody's own files, and the function that makes the digest of each."""
    sources: dict[str, Callable[[str], str]] = {}
    for trial in trials:
        sources |= {name: plugins.digest for _, name in named(trial.settings) if plugins.is_file(name)}
        dataset, table = str(trial.settings["dataset"]), str(trial.settings.get("partition-table", ""))
        if any(is_path(item) for item in listed(dataset)) and not plugins.is_file(dataset):
            sources[dataset] = _digest_data
        if table:
            sources[table] = table_digest
    return sources


def _digest_data(dataset: str) -> str:
    """A digest of the names, sizes and times of all files of a data set."""
    return make_key([place.state() for place in locate_all(dataset) if isinstance(place, Folder)])
