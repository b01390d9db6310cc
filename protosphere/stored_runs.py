"""What the results folder holds: runs and comparisons, how far they are, what they take on the disk; and away with
them."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import FILE as COMPARISON
from protosphere.core.errors import SettingError
from protosphere.core.files import LARGEST_RECORD, folder_lock, read_whole
from protosphere.core.home import discard_stores, results_root, stores
from protosphere.core.settings import is_run_name, nearest, shown
from protosphere.record.folder import RunFolder


@dataclass(frozen=True)
class StoredEntry:
    """A run, or a comparison with all its runs.

    Attributes:
        what: its method; of a comparison how many trials it has.
        state: as status.json says; `starting` before it says anything; `cut` where it says that it runs and no process
            holds it.
        headline: the primary rule's accuracy, None before the first evaluation.
    """

    path: Path
    what: str
    dataset: str
    state: str
    rounds: str
    headline: float | None = None

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.path.name

    @property
    def comparison(self) -> bool:
        """Whether it is one."""
        return (self.path / COMPARISON).exists()

    @cached_property
    def size(self) -> int:
        """Bytes in the results folder and of its clients' models in this home."""
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
    """All that the results folder holds, the newest last."""
    root = results_root(results)
    entries = [_comparison(file.parent) for file in root.glob(f"*/{COMPARISON}")]
    for file in root.glob("*/settings.json"):
        if not (file.parent / COMPARISON).exists():
            entries.append(_run(file.parent))
    return sorted(entries, key=lambda entry: (entry.changed, entry.name))


def find(name: str, results: str = "") -> Path:
    """The folder of a run or comparison, perhaps a link to it: a path, a name in the results folder, or `latest`.

    Raises:
        SettingError: there is none.
    """
    root = results_root(results)
    entries = list_stored(results)
    if name == "latest" and entries:
        return entries[-1].path
    paths = {entry.path.absolute() for entry in entries}
    for path in (Path(os.path.abspath(os.path.expanduser(name))), (root / name).absolute()):
        # other programs, too, keep a settings.json
        if path in paths or "strategy" in _read(path / "settings.json") or "trials" in _read(path / COMPARISON):
            return path
    raise SettingError(
        f"no run and no comparison is called {shown(name)}{nearest(name, [entry.name for entry in entries])}; "
        f"`protosphere runs` lists those in {root}."
    )


def delete(folders: Sequence[Path]) -> None:
    """Take runs and comparisons away, with their clients' models in this home.

    Raises:
        SettingError: one is being written; then nothing is taken away.
        OSError: one cannot be taken away.
    """
    places = list(dict.fromkeys(folder.resolve() for folder in folders))
    with ExitStack() as locks:
        for place in places:
            locks.enter_context(folder_lock(place, "a run or a comparison"))
        for place in places:
            for run in _runs_of(place):
                discard_stores(run.name)
            shutil.rmtree(place)
        for link in folders:
            link.unlink(missing_ok=True)


def _runs_of(folder: Path) -> Iterator[RunFolder]:
    """The run in a folder, or those of a comparison's trials."""
    for file in (*folder.glob("settings.json"), *folder.glob("trials/*/*/settings.json")):
        if is_run_name(file.parent.name):
            yield RunFolder(file.parent)


def _run(folder: Path) -> StoredEntry:
    settings, status, summary = (_read(folder / f"{name}.json") for name in ("settings", "status", "summary"))
    state = str(status.get("state") or ("completed" if summary else "starting"))
    if state in ("starting", "running") and not (_is_new(folder) or _is_held(folder)):
        state = "cut"
    elif state == "stopped" and _is_held(folder):
        # it goes on, and has not finished a round yet
        state = "starting"
    headline: dict[str, Any] = {}
    for figures in (summary.get("headline"), status.get("latest"), status.get("headline")):
        headline = headline or (figures if isinstance(figures, dict) else {})
    rounds = f"{status.get('round', summary.get('rounds', '?'))}/{status.get('rounds', settings.get('rounds', '?'))}"
    method, dataset = str(settings.get("strategy", "?")), str(settings.get("dataset", "?"))
    accuracy = headline.get("accuracy")
    return StoredEntry(folder, method, dataset, state, rounds, accuracy if isinstance(accuracy, int | float) else None)


def _comparison(folder: Path) -> StoredEntry:
    listed = _read(folder / COMPARISON).get("trials", [])
    trials = [trial for trial in listed if _is_trial(trial)] if isinstance(listed, list) else []
    datasets = dict.fromkeys(str(trial["settings"].get("dataset", "?")) for trial in trials)
    done = sum(any(folder.glob(f"trials/{trial['name']}/*/summary.json")) for trial in trials)
    if trials and done == len(trials):
        state = "completed"
    elif _is_new(folder):
        state = "starting"
    elif _is_held(folder):
        state = "running"
    else:
        state = "cut"
    return StoredEntry(folder, f"{len(trials)} runs", ", ".join(datasets), state, f"{done}/{len(trials)}")


def _is_trial(trial: object) -> bool:
    """Whether a broken file, or one of another program, has there what a list can show."""
    return isinstance(trial, dict) and isinstance(trial.get("name"), str) and isinstance(trial.get("settings"), dict)


def _read(path: Path) -> dict[str, Any]:
    """A JSON file; empty where it is missing or broken, since a list must show what is broken, too."""
    with suppress(OSError, ValueError):
        content = json.loads(read_whole(path, LARGEST_RECORD))
        return content if isinstance(content, dict) else {}
    return {}


def _is_new(folder: Path) -> bool:
    """Whether its process has not come to hold it yet, which it does before anything else than these files."""
    return {path.name for path in folder.glob("*")} <= {"settings.json", COMPARISON}


def _is_held(folder: Path) -> bool:
    # a folder without a lock is not to get one by being looked at
    if not os.access(folder / ".lock", os.F_OK):
        return False
    try:
        with folder_lock(folder, "a run"):
            return False
    except SettingError:
        return True
