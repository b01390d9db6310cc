"""The run's folder: settings, one line of metrics a round, the checkpoint, the summary. Every write is whole or
not at all (a temporary file, then a rename)."""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.files import (
    folder_lock,
    is_held,
    read_lines,
    read_tensors,
    replacing,
    unsettled,
    write_tensors,
)
from protosphere.core.home import results_root, stores
from protosphere.core.settings import MAY_DIFFER_ON_RESUME, Settings, is_run_name, plain_name, refuse_earlier, shown
from protosphere.data.domains import short_name
from protosphere.record import client_tables

TIMES_BY_CLIENT = ("train", "evaluate", "client")  # what of a line's `time` is by client
UNFINISHED = ("starting", "running")  # states of a run that is on
FORMAT = 4  # of a run's folder; another number means that this program cannot read it
EARLIER_VERSION = "is of an earlier version of Protosphere, which this one does not read; use that version"
REMEDY = "restore it from a copy, or start a new run"
LONGEST_NAME = (
    100  # bytes of a new run's name before its random digits; a data set's may be longer than a file's can be
)


Content = TypeVar("Content", dict[str, Any], list[dict[str, Any]])


class RunFolder:
    """`<time>-<strategy>-<dataset>/` in the results folder.

    Holds settings.json, origin.json, roster.json, status.json, metrics.jsonl, checkpoint.safetensors,
    prototypes.safetensors, and at the end clients.parquet (client_tables.py) and summary.json.
    """

    def __init__(self, path: Path):
        self.path = path
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []  # each is told a line when it is on the disk

    @property
    def name(self) -> str:
        """The run's key: client stores are kept under it."""
        return self.path.name

    @classmethod
    def create(cls, settings: Settings, run_config: Mapping[str, Any]) -> "RunFolder":
        """A new folder for this run: its time, method and data set, and eight random digits, since its clients keep
        their models under its name wherever they are.

        Raises:
            SettingError: when the results folder cannot be written.
        """
        root = results_root(settings.results_dir)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time()))
        base_name = "-".join((stamp, plugins.stem(settings.strategy), short_name(settings.dataset)))
        # the name travels in every message, so equal runs must have names of one length to have the same bytes
        folder = cls(root / f"{plain_name(base_name, LONGEST_NAME)}-{secrets.token_hex(4)}")
        with explain_unwritable(root):
            root.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir()
        try:
            folder.make_stores()
        except SettingError:
            folder.path.rmdir()
            raise
        folder._write_json("settings.json", dict(run_config))
        return folder

    @classmethod
    def resume(
        cls,
        settings: Settings,
        run_config: Mapping[str, Any],
        as_of_today: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> "RunFolder":
        """The folder that `resume` names (see `find_run`).

        Args:
            as_of_today: makes what this version would have kept of the settings that are kept there.

        Raises:
            SettingError: no such run, no checkpoint yet, or a setting that may not change does.
        """
        folder = cls(find_run(settings.resume, settings.results_dir, resumes=True))
        if not is_run_name(folder.name):
            raise SettingError(
                f"cannot resume {folder.path}: clients keep their models under the folder's name, which is no plain "
                "one; rename it back."
            )
        if not (folder.path / "checkpoint.safetensors").exists():
            raise SettingError(f"{folder.path} holds no checkpoint: no round was finished; start a new run.")
        if differing := difference(folder.settings(), run_config, MAY_DIFFER_ON_RESUME, as_of_today):
            name, old, new = differing
            raise SettingError(
                f"cannot resume {folder.path}: setting `{name}` was {old} and is now {new}; give the old value, or "
                "start a new run."
            )
        return folder

    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with."""
        settings = self._read_json("settings.json", dict)
        if "digest" in settings:
            # format 3 had one in each JSON file
            raise SettingError(f"{self.path} {EARLIER_VERSION}.")
        refuse_earlier(settings, self.path)
        return settings

    def roster(self) -> list[dict[str, Any]]:
        """Who took part when the run was started, or last resumed."""
        return self._read_json("roster.json", list)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder while a server runs in it.

        Raises:
            SettingError: another process holds it.
        """
        with folder_lock(self.path, "a run"):
            # of a server that was killed while it wrote
            for temporary in self.path.glob(".*.tmp"):
                temporary.unlink(missing_ok=True)
            yield

    def make_stores(self) -> None:
        """Make the folder of its clients' stores, by which workers of other machines know this home for the run's.

        Raises:
            SettingError: it cannot be written.
        """
        with explain_unwritable(stores(self.name), "stores' folder"):
            stores(self.name).mkdir(parents=True, exist_ok=True)

    def discard_unless_begun(self) -> None:
        """Take the folder away if no round came to its line: it holds no result, and `latest` must not find it."""
        if (self.path / "metrics.jsonl").exists() or (self.path / "checkpoint.safetensors").exists():
            return
        # a folder that cannot be taken away does no harm beside the error that led here
        with suppress(OSError):
            names = ("settings.json", "roster.json", "status.json", "origin.json", ".lock")
            for name in names:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
            stores(self.name).rmdir()

    def refuse_fewer_rounds(self, rounds: int, finished: int, resume: str) -> None:
        """A resumed run cannot end before the round that it has finished, and `latest` names one that can go on.

        Args:
            resume: by what the run was named.

        Raises:
            SettingError: it is asked to end earlier, or `latest` has come to its end.
        """
        if resume == "latest" and rounds == finished and (self.path / "summary.json").exists():
            raise SettingError(
                f"the newest run, {self.path}, has finished round {rounds} of {rounds}, so there is nothing to resume; "
                "set more `rounds` to go on with it, or name an earlier run."
            )
        if rounds < finished:
            raise SettingError(
                f"setting `rounds` is {rounds}, but {self.path} has finished {finished}; resume with that many or more."
            )

    def set_end(self, rounds: int, settings: Settings) -> None:
        """Remember when the run is now to end, so that a later resume need not be told again."""
        ends = {"stop-patience": settings.stop_patience, "rounds": rounds}
        self._write_json("settings.json", self.settings() | ends)

    def write_roster(self, roster: list[dict[str, Any]]) -> None:
        """Who took part, and what each discloses."""
        self._write_json("roster.json", roster)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """How far the run is, for whoever looks on."""
        self._write_json("status.json", status)

    def status(self) -> dict[str, Any]:
        """Inverse of `write_status`; a run that was on when its process ended is `stopped`, whatever the file says."""
        status = self._read_json("status.json", dict)
        if status.get("state") in UNFINISHED and not is_held(self.path):
            status["state"] = "stopped"
        return status

    def _settle(self) -> None:
        with explain_unwritable(self.path):
            unsettled.settle()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The run's outcome, when what the last evaluation has left is on the disk."""
        self._settle()
        self._write_json("summary.json", summary)

    def summary(self) -> dict[str, Any]:
        """Inverse of `write_summary`."""
        return self._read_json("summary.json", dict)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl and see it to the disk."""
        text = _as_text(line)
        with explain_unwritable(self.path), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        for hear in self.listeners:
            hear(line)

    def replace_last(self, line: Mapping[str, Any]) -> None:
        """Put a line in the place of the newest one, whole or not at all."""
        self._rewrite_lines(line["round"] - 1, line)
        for hear in self.listeners:
            hear(line)

    def _rewrite_lines(self, last_round: int, *further_lines: Mapping[str, Any]) -> None:
        """Write metrics.jsonl anew: the lines up to that of `last_round`, and further ones."""
        with self._replacing("metrics.jsonl") as temporary, temporary.open("w", encoding="utf-8") as file:
            for line in self.each_line():
                if line["round"] <= last_round:
                    file.write(_as_text(line))
            for further_line in further_lines:
                file.write(_as_text(further_line))

    def lines(self, with_clients: bool = True) -> list[dict[str, Any]]:
        """All finished lines of metrics.jsonl; a line that a crash cut short is left out.

        Args:
            with_clients: whether with the figures by client, of which there may be many: who reads them of a whole run
                asks for `each_line`.

        Raises:
            SettingError: the lines cannot be read, or some of them are gone.
        """
        # before the lines: a run that ends meanwhile has more of them, and not fewer
        ended, summary = (self.path / "summary.json").exists(), {}
        if ended:
            # of one that cannot be read its own reader says so
            with suppress(SettingError):
                summary = self.summary()
        lines = []
        for line in self.each_line():
            lines.append(line if with_clients else _without_clients(line))
        if problem := _describe_lost(lines, summary):
            raise SettingError(
                f"{self.path / 'metrics.jsonl'} {problem}: a damaged disk or a cut copy does that; restore it from "
                "a copy, or `--resume` the run."
            )
        return lines

    def each_line(self) -> Iterator[dict[str, Any]]:
        """The lines with their figures by client, of which one at a time is in memory.

        Raises:
            SettingError: a line cannot be read.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        try:
            for line in read_lines(path):
                if isinstance(line, dict) and "clients_in" in line:
                    raise SettingError(f"{path} {EARLIER_VERSION}.")
                yield line
        except OSError as error:
            raise SettingError(f"{path} cannot be read ({error}); {REMEDY}.") from None

    def newest_line(self) -> dict[str, Any]:
        """The last line with its figures by client; empty where there is none.

        Raises:
            SettingError: a line cannot be read.
        """
        newest: dict[str, Any] = {}
        for line in self.each_line():
            newest = line
        return newest

    def write_client_table(self, rule: str) -> None:
        """Write the figures by client of all rounds as one tidy table.

        Args:
            rule: the run's own inference rule.
        """
        with self._replacing(client_tables.FILE) as temporary:
            client_tables.write(temporary, client_tables.rows_of_run(self.each_line(), self.roster(), rule))

    def truncate(self, last_round: int) -> None:
        """Drop what was written after the line of `last_round`: those rounds are run again.

        Raises:
            SettingError: a line up to there is missing, so that the run's figures would be of a part of it.
        """
        try:
            rounds = [line["round"] for line in self.each_line() if line["round"] <= last_round]
        except (TypeError, KeyError):
            raise SettingError(
                f"{self.path / 'metrics.jsonl'} holds a line without a round, which this program did not write; "
                f"{REMEDY}."
            ) from None
        if rounds != list(range(last_round + 1)):
            raise SettingError(
                f"{self.path / 'metrics.jsonl'} no longer holds a line for each of the {last_round} finished rounds; "
                "restore it, or start a new run."
            )
        self._rewrite_lines(last_round)
        with explain_unwritable(self.path):
            # what was said of the end, or of a further round, holds no longer
            for name in ("summary.json", "report.html", client_tables.FILE):
                (self.path / name).unlink(missing_ok=True)

    def save_checkpoint(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """The server's state after a round: tensors, and a JSON value beside them. It counts on what clients of this
        process have kept, which is on the disk before it."""
        metadata = {"run": self.name, "meta": json.dumps(meta, allow_nan=False)}
        self._settle()
        with self._replacing("checkpoint.safetensors") as temporary:
            write_tensors(temporary, tensors, metadata)

    def load_checkpoint(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Inverse of `save_checkpoint`.

        Raises:
            SettingError: it cannot be read, or was made while the folder had another name.
        """
        path = self.path / "checkpoint.safetensors"
        try:
            tensors, metadata = read_tensors(path)
            run, meta = metadata["run"], json.loads(metadata["meta"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SettingError(f"the checkpoint {path} cannot be read ({error}); start a new run.") from None
        if run != self.name:
            raise SettingError(
                f"cannot resume {self.path}: it was called {run} when it was cut, and its clients keep their models "
                "under that name; rename it back."
            )
        return tensors, meta

    def _read_json(self, name: str, kind: type[Content]) -> Content:
        path = self.path / name
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SettingError(f"{path} cannot be read ({error}); {REMEDY}.") from None
        if not isinstance(content, kind):
            raise SettingError(f"{path} holds no {kind.__name__}, which this program wrote there; {REMEDY}.")
        return content

    def _write_json(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        with self._replacing(name) as temporary:
            temporary.write_text(text)

    @contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        """A temporary file that takes the place of `name` when it is whole, and goes when it is not."""
        with explain_unwritable(self.path), replacing(self.path / name) as temporary:
            yield temporary


def _is_run(folder: Path) -> bool:
    """Whether a folder with a settings.json is a run's, or was: other programs keep such a file, too."""
    if any((folder / name).exists() for name in ("status.json", "metrics.jsonl", "checkpoint.safetensors")):
        return True
    with suppress(SettingError):
        return "strategy" in RunFolder(folder).settings()
    return False


def find_run(name: str, results_dir: str, *, resumes: bool = False) -> Path:
    """The folder of a finished or cut run: a path, a name in the results folder, `latest`, or the number that Flower
    knows it by.

    Args:
        resumes: `latest` is the run that began last. Else it is the newest of those with a finished round.

    Raises:
        SettingError: when there is none, or no round of the run that is to be resumed was finished.
    """
    root = results_root(results_dir)
    if name == "latest":
        files = sorted(root.glob("*/settings.json"), key=lambda file: file.stat().st_mtime_ns)
        runs = [file.parent.resolve() for file in files if _is_run(file.parent)]
        runs_with_rounds = [run for run in runs if (run / "checkpoint.safetensors").exists()]
        if resumes and runs and runs[-1:] != runs_with_rounds[-1:]:
            earlier = f", or resume an earlier run: {runs_with_rounds[-1].name}" if runs_with_rounds else ""
            raise SettingError(
                f'setting `resume` is "latest", but of the newest run, {runs[-1]}, no round was finished; start it '
                f"anew{earlier}."
            )
        if not runs_with_rounds:
            raise SettingError(f'setting `resume` is "latest", but {root} holds no run; start one first.')
        return runs_with_rounds[-1]
    for path in (Path(os.path.expanduser(name)), root / name):
        if path.is_absolute() and (path / "settings.json").exists():
            # the last part of the path is the run's key, which `..` or a link would hide
            return path.resolve()
    if name.isdecimal() and (folder := find_flower_run(name, root)):
        return folder.resolve()
    if any((path / "comparison.json").exists() for path in (Path(os.path.expanduser(name)), root / name)):
        raise SettingError(
            f"setting `resume` is {shown(name)}, but this is a comparison, which `protosphere compare --resume` goes "
            "on with."
        )
    raise SettingError(
        f"setting `resume` is {shown(name)}, but no run with a settings.json is there or in {root}; give a run's "
        'folder, its name in the results folder, its number in `flwr ls`, or "latest".'
    )


def find_flower_run(flower_run: str, results: Path, most: int | None = None) -> Path | None:
    """The folder of the run that Flower knows by this number; None where none says so.

    Args:
        results: the results folder.
        most: how many of the newest folders to look into, by their names, which begin with the time.
    """
    for path in sorted(results.glob("*/status.json"), reverse=True)[:most] if flower_run else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(path.read_bytes())["flower_run"] == flower_run:
                return path.parent
    return None


def append_log(log: Path, text: str) -> Path | None:
    """Add to a log, since a resumed run goes on with its own; None when it cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return log


def difference(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    indifferent: Set[str],
    as_of_today: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[str, str, str] | None:
    """The first setting in which two runs differ, and in words what it is in each; None where they compute the same.

    Args:
        indifferent: settings in which they may differ.
        as_of_today: makes what this version would have kept of the old ones.
    """
    # first the method, whose code the rest needs: the new one's may run, another that the old one names may not
    names: Set[str] = {"strategy"} & old.keys()
    if all(old[name] == new.get(name) for name in names):
        old = as_of_today(old)
        names = (old.keys() | new.keys()) - indifferent
    for name in sorted(names):
        if old.get(name) != new.get(name):
            return name, shown(old.get(name)), shown(new.get(name))
    return None


@contextmanager
def explain_unwritable(folder: Path, what: str = "results folder") -> Iterator[None]:
    """What goes wrong on the disk, as one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(
            f"the {what} {folder} cannot be written ({reason}); free space there, or set `results-dir` or "
            "PROTOSPHERE_HOME to a writable folder."
        ) from None


def _without_clients(line: dict[str, Any]) -> dict[str, Any]:
    """A line without its figures by client; what is no line at all is its reader's to refuse."""
    if not isinstance(line, dict) or not isinstance(line.get("time"), dict):
        return line
    time_of_round = {name: seconds for name, seconds in line["time"].items() if name not in TIMES_BY_CLIENT}
    return {**line, "clients": {}, "time": time_of_round}


def _as_text(line: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl."""
    return json.dumps(line, allow_nan=False) + "\n"


def _describe_lost(lines: Sequence[dict[str, Any]], summary: Mapping[str, Any]) -> str:
    """What of a run's lines is gone, as a part of a sentence; "" for nothing.

    Args:
        summary: of a run that came to its end; else nothing.
    """
    if not all(isinstance(line, dict) and isinstance(line.get("round"), int) for line in lines):
        # what is no line at all is its reader's to refuse
        return ""
    rounds = [line["round"] for line in lines]
    if rounds and rounds[0] == 1:
        return EARLIER_VERSION
    for number, actual in enumerate(rounds):
        if actual != number:
            return f"has a line of round {actual} where that of round {number} should be"
    if summary.get("format") != FORMAT or not isinstance(summary.get("rounds"), int):
        return ""
    if len(rounds) <= summary["rounds"]:
        return f"has lines up to round {len(rounds) - 1}, and summary.json is of {summary['rounds']} rounds"
    return ""
