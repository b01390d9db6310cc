"""Runs that there are already enter a comparison: of the same settings, to the last one, and the same versions."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import INDIFFERENT, ComparisonFolder
from protosphere.comparison.trials import Cell
from protosphere.core.errors import SettingError
from protosphere.core.settings import without_gone
from protosphere.record.folder import RunFolder
from protosphere.record.provenance import versions
from protosphere.strategies.trust import code_among, named

# of the run alone: a comparison takes the clients' models away where a cell's own run has left a checkpoint
NOT_COPIED = ("checkpoint.safetensors", ".lock", "status.json")
SUMMARY = "summary.json"


def reuse(folder: ComparisonFolder, cells: Sequence[Cell]) -> list[tuple[Cell, Path]]:
    """Copy finished runs beside the comparison into the cells that lack one.

    Code of the user's own may have changed since, and is run anew.

    Returns:
        These cells, and the run that each was given.

    Raises:
        OSError: a run cannot be copied.
    """
    runs_by_key: dict[str, Path] = {}
    for run, settings in _find_finished(folder.path.parent, folder.path):
        runs_by_key.setdefault(_key(settings), run)
    taken = []
    for cell in cells:
        same = runs_by_key.get(_key(cell.settings))
        if same is None or folder.run_of(cell) or code_among(named(cell.settings)):
            continue
        folder.discard(cell)
        place = folder.of(cell) / same.name
        shutil.copytree(same, place, ignore=shutil.ignore_patterns(*NOT_COPIED, SUMMARY))
        # last, for it makes a finished run of what is there: a copy that was cut is none
        shutil.copyfile(same / SUMMARY, place / SUMMARY)
        taken.append((cell, same))
    return taken


def _find_finished(root: Path, comparison_folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Runs of these versions that came to their last round, the newest first."""
    ours = {name: number for name, number in versions().items() if name in ("protosphere", "torch", "numpy")}
    for file in sorted([*root.glob("*/summary.json"), *root.glob("*/cells/*/*/summary.json")], reverse=True):
        run = file.parent
        if comparison_folder in run.parents:
            continue
        try:
            summary, settings = RunFolder(run).summary(), without_gone(RunFolder(run).settings())
            completed = summary["status"] == "completed" and summary["rounds"] == settings["rounds"]
            same = all(summary["versions"].get(name) == number for name, number in ours.items())
        except (SettingError, KeyError, TypeError, AttributeError):
            continue
        if completed and same:
            yield run, settings


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in settings.items() if name not in INDIFFERENT}, sort_keys=True)
