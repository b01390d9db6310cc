"""What the trials of a comparison read that is somebody's own, local data and files of code: it stays the same."""

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
    """Note in a comparison's folder what its trials read, and hold what finished trials have read against the note.

    Raises:
        SettingError: it has changed since, or is not there any more; or the note is damaged.
        OSError: the note cannot be written.
    """
    file = folder / FILE
    digests = {}
    for source, digest in sorted(_list_sources(trials).items()):
        try:
            digests[source] = digest(source)
        except (DataError, ModelError):
            # it is not there, or no data any more
            digests[source] = ""
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


def _list_sources(trials: Iterable[Trial]) -> dict[str, Callable[[str], str]]:
    """What trials read, by the settings' values, and what makes a digest of each."""
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
    """Of the names, sizes and times of all files that the data are read from."""
    return make_key([place.state() for place in locate_all(dataset) if isinstance(place, Folder)])
