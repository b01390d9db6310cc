"""Reads a run's folder for its report; the run may have been interrupted. No code in the folder is run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from protosphere.core import plugins
from protosphere.core.client_names import client_names
from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings, check, refuse_unknown, shown
from protosphere.core.text import one_line
from protosphere.record import snapshots
from protosphere.record.folder import FORMAT, RunFolder
from protosphere.record.metrics_lines import MAJORITY
from protosphere.record.summary import companions, summarise
from protosphere.reports.frames import over_rounds
from protosphere.strategies import load_method, unpacked
from protosphere.strategies.trust import untrusted

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of a run.

    Attributes:
        folder: the run's folder.
        settings: the settings that all methods share.
        stored: all settings as stored.
        rule: the run's main inference rule.
        roster: the clients in partition order, as in roster.json.
        lines: of metrics.jsonl, without metrics by client.
        rounds: one row per round, with its metrics and the accuracies of the models after it.
        summary: of the whole run, or of its rounds so far.
        finished: whether the run was completed.
    """

    folder: Path
    settings: Settings
    stored: Mapping[str, Any]
    rule: str
    roster: Sequence[Mapping[str, Any]]
    lines: Sequence[Line]
    rounds: pd.DataFrame
    summary: Mapping[str, Any]
    finished: bool

    @cached_property
    def client_names(self) -> dict[int, str]:
        """The clients' names, by partition; clients without a name are not included."""
        return client_names(self.roster)

    @property
    def class_names(self) -> list[str]:
        """K names in label order."""
        return list(self.roster[0]["class_names"])

    def each_line(self) -> Iterator[Line]:
        """The lines with metrics by client, one at a time."""
        return RunFolder(self.folder).each_line()

    @cached_property
    def final_accuracies(self) -> dict[int, float]:
        """Partition -> test accuracy by the main rule, for each client in the last evaluation."""
        last: Line = {"clients": {}}
        for line in self.each_line():
            if line.get("evaluation"):
                last = line
        accuracies = {}
        for partition, client in last["clients"].items():
            accuracy = client.get("evaluation", {}).get(self.rule, [None])[0]
            if accuracy is not None:
                accuracies[int(partition)] = float(accuracy)
        return accuracies

    def figure(self, name: str) -> "pd.Series[float]":
        """A column of `rounds`, without missing values."""
        return self.rounds.reindex(columns=[name])[name].dropna()


def read_results(folder: Path) -> Results:
    """Read a run's folder.

    Raises:
        SettingError: it has no finished round, or another version wrote it.
    """
    if (folder / "comparison.json").exists():
        raise SettingError(f"{folder} is a comparison; `protosphere compare --resume {folder}` writes its report.")
    has_files = all((folder / name).exists() for name in ("settings.json", "metrics.jsonl", "roster.json"))
    record = RunFolder(folder)
    if not has_files or not record.roster() or next(record.each_line(), None) is None:
        raise SettingError(
            f"{folder} holds no run with a finished round; give the folder that `protosphere run` names at its end, or "
            "`latest`."
        )
    with explain_damage(folder):
        return _read(folder)


@contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Inside, values of unexpected types in the folder's files raise one SettingError."""
    try:
        yield
    except (SettingError, OSError):
        raise
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}", 200).rstrip(".: ")
        raise SettingError(
            f"{folder} cannot be read, since its files are not as this version of Protosphere writes them ({problem}); "
            "restore it from a copy, or use the version that wrote it."
        ) from error


def _read(folder: Path) -> Results:
    record = RunFolder(folder)
    stored, lines, roster = record.settings(), record.lines(with_clients=False), record.roster()
    # an interrupted run has no summary
    finished = (folder / "summary.json").exists()
    summary = record.summary() if finished else {}
    if finished and summary["format"] != FORMAT:
        raise SettingError(
            f"{folder} was written by Protosphere {summary['versions']['protosphere']} (its format is "
            f"{summary['format']}, and this program's {FORMAT}); make its report with that version."
        )
    shared = {name: value for name, value in unpacked(stored).items() if "." not in name}
    refuse_unknown(shared, [name.replace("_", "-") for name in Settings.model_fields])
    settings: Settings = check(Settings, shared)
    rule = str(summary["headline"]["rule"]) if finished else _find_rule(folder, settings, lines)
    if not finished:
        companion = companions(str(entry.get("companion", "")) for entry in roster)
        each_line = record.each_line()
        summary = summarise(settings, rule, stored, lines, len(roster), companion, each_line=each_line)
        summary["status"] = "not finished"
    return Results(folder, settings, stored, rule, roster, lines, over_rounds(lines, rule), summary, finished)


def _find_rule(folder: Path, settings: Settings, lines: Sequence[Line]) -> str:
    """The main rule of an unfinished run; the first rule that clients reported if the method's code cannot be run."""
    strategy = settings.strategy
    if settings.inference != "auto":
        return settings.inference
    is_own = plugins.is_plugin(strategy)
    if not is_own or (plugins.is_here(strategy) and not untrusted(folder, [("strategy", strategy)])):
        return load_method(strategy).inference
    reported = [rule for line in lines for rule in line.get("evaluation", {}).get("rules", {}) if rule != MAJORITY]
    return next(iter(reported), "classifier")


@dataclass(frozen=True, eq=False)
class Prototypes:
    """A round's prototypes.

    Attributes:
        round: the round's number.
        labels, vectors: (k,) and (k, d) float32, the global prototypes as targets, scaled as clients receive them;
            empty if clients get personal prototypes.
        clients, client_labels, client_vectors: (n,), (n,), (n, d): the client, class and value of each uploaded
            prototype; empty for an earlier round, unless the run keeps all.
        left_out: the number of clients whose prototypes are not stored, since all would take too much space.
    """

    round: int
    labels: NDArray[Any]
    vectors: NDArray[Any]
    clients: NDArray[Any]
    client_labels: NDArray[Any]
    client_vectors: NDArray[Any]
    left_out: int = 0


def read_prototypes(folder: Path, round: int | None = None) -> Prototypes:
    """The prototypes of a round, or of the newest one that is kept; without any, all arrays are empty.

    Raises:
        SettingError: the run keeps some, but none of that round.
    """
    tensors, about = snapshots.newest(folder)
    if tensors and round not in (None, about["round"]):
        rounds = snapshots.kept_rounds(folder)
        if round not in rounds:
            raise SettingError(
                f"round is {shown(round)}, but {folder} keeps prototypes of these rounds only: "
                f"{', '.join(map(str, sorted({*rounds, about['round']})))}; "
                'keep-prototypes = "all" keeps those of every round.'
            )
        tensors, about = snapshots.read_round(folder, round)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    width = max((array.shape[1] for array in arrays.values() if array.ndim == 2), default=0)
    no_numbers, no_vectors = np.zeros(0, dtype=np.int64), np.zeros((0, width), dtype=np.float32)
    return Prototypes(
        round=about.get("round", 0),
        labels=arrays.get("global/labels", no_numbers),
        vectors=arrays.get("global/vectors", no_vectors).astype(np.float32),
        clients=arrays.get("local/clients", no_numbers),
        client_labels=arrays.get("local/labels", no_numbers),
        client_vectors=arrays.get("local/vectors", no_vectors).astype(np.float32),
        left_out=about.get("left_out", 0),
    )
