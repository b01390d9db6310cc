"""Lists the results folder: runs and comparisons, their progress and their size on the disk."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from protosphere.comparison.folder import FILE as COMPARISON
from protosphere.core.errors import SettingError
from protosphere.core.files import is_held
from protosphere.core.home import results_root, stores
from protosphere.core.settings import is_run_name
from protosphere.record.folder import RunFolder

UNREADABLE = "unreadable"


@dataclass(frozen=True)
class StoredEntry:
    """A run, or a comparison with all its runs.

    Attributes:
        what: the method; for a comparison, its number of trials.
        state: a run's state as in `Run.status`; `stopped` for a comparison that no process is running; or `unreadable`.
        headline: the main rule's accuracy; None before the first evaluation.
    """

    path: Path
    what: str
    dataset: str
    state: str
    rounds: str
    headline: float | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @cached_property
    def size(self) -> int:
        """Bytes in the results folder and in its clients' stores in this home."""
        places = [self.path, *(stores(run.name) for run in _runs_of(self.path))]
        total = 0
        for place in places:
            for path in place.rglob("*"):
                with suppress(OSError):
                    total += path.stat().st_size if path.is_file() else 0
        return total

    @cached_property
    def changed(self) -> float:
        """Seconds since the epoch."""
        files = [self.path / name for name in ("summary.json", "status.json", "settings.json", COMPARISON)]
        return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def list_stored(results: str = "") -> list[StoredEntry]:
    """All entries of the results folder, the newest last."""
    root = results_root(results)
    entries = [_comparison(file.parent) for file in root.glob(f"*/{COMPARISON}")]
    for file in root.glob("*/settings.json"):
        # editors keep such files in hidden folders
        if not (file.parent / COMPARISON).exists() and not file.parent.name.startswith("."):
            entries.append(_run(file.parent))
    return sorted(entries, key=lambda entry: (entry.changed, entry.name))


def _runs_of(folder: Path) -> Iterator[RunFolder]:
    """The run in a folder, or those of a comparison's trials."""
    for file in (*folder.glob("settings.json"), *folder.glob("trials/*/*/settings.json")):
        if is_run_name(file.parent.name):
            yield RunFolder(file.parent)


def _run(folder: Path) -> StoredEntry:
    record = RunFolder(folder)
    try:
        settings = record.settings()
        what, dataset, rounds = str(settings["strategy"]), str(settings["dataset"]), str(settings["rounds"])
        if not (folder / "status.json").exists():
            return StoredEntry(folder, what, dataset, "starting", f"0/{rounds}")
        status = record.status()
        figures = status.get("latest") or {}
        if (folder / "summary.json").exists():
            figures = record.summary()["headline"]
        rounds = f"{status.get('round', 0)}/{status.get('rounds', rounds)}"
        return StoredEntry(folder, what, dataset, str(status["state"]), rounds, figures.get("accuracy"))
    except (SettingError, KeyError, TypeError, AttributeError):
        # broken folders are listed, too
        return StoredEntry(folder, "?", "?", UNREADABLE, "?")


def _comparison(folder: Path) -> StoredEntry:
    try:
        trials = json.loads((folder / COMPARISON).read_bytes())["trials"]
        datasets = dict.fromkeys(str(trial["settings"]["dataset"]) for trial in trials)
        done = sum(any(folder.glob(f"trials/{trial['name']}/*/summary.json")) for trial in trials)
    except (OSError, ValueError, KeyError, TypeError):
        return StoredEntry(folder, "?", "?", UNREADABLE, "?")
    state = "completed" if done == len(trials) else "running" if is_held(folder) else "stopped"
    return StoredEntry(folder, f"{len(trials)} runs", ", ".join(datasets), state, f"{done}/{len(trials)}")
