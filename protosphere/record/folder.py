"""The run's folder: settings, one line of metrics per round, the checkpoint, the summary. Files are written completely
or not at all, except that lines are appended to metrics.jsonl and run.log."""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Set
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
from protosphere.core.settings import MAY_DIFFER_ON_RESUME, Settings, plain_name, shown
from protosphere.data.domains import short_name
from protosphere.record import client_tables

SETTINGS, ROSTER, STATUS = "settings.json", "roster.json", "status.json"
LINES, CHECKPOINT, SUMMARY = "metrics.jsonl", "checkpoint.safetensors", "summary.json"
TIMES_BY_CLIENT = ("train", "evaluate", "client")  # fields of a line's `time` that are by client
UNFINISHED = ("starting", "running")  # states of a run that has not ended
FORMAT = 7  # the format of a run's folder; this program cannot read others
REMEDY = "restore it from a copy, or start a new run"
# bytes of a new run's name before its random digits, since a data set's name may be too long for a file
LONGEST_NAME = 100

Line = dict[str, Any]
Content = TypeVar("Content", dict[str, Any], list[dict[str, Any]])


class RunFolder:
    """`<time>-<strategy>-<dataset>/` in the results folder; docs/running.md lists its files."""

    def __init__(self, path: Path):
        self.path = path
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []  # each is called with a line after it is on disk

    @property
    def name(self) -> str:
        """The run's name, which is also the name of the clients' stores."""
        return self.path.name

    # --- a new run, and one to resume -----------------------------------------------------------------------

    @classmethod
    def create(cls, settings: Settings, run_config: Mapping[str, Any]) -> "RunFolder":
        """Make a new folder, and that of the clients' stores. Its name ends in random digits, because clients on all
        machines store their models under it. Raises SettingError.
        """
        root = results_root(settings.results_dir)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time()))
        base_name = "-".join((stamp, plugins.stem(settings.strategy), short_name(settings.dataset)))
        # the name is in every message: equal runs need names of equal length for equal byte counts
        folder = cls(root / f"{plain_name(base_name, LONGEST_NAME)}-{secrets.token_hex(4)}")
        with explain_unwritable(root):
            root.mkdir(parents=True, exist_ok=True)
            folder.make_stores()
            folder.path.mkdir()
        folder._write_json(SETTINGS, dict(run_config))
        return folder

    @classmethod
    def resume(
        cls,
        settings: Settings,
        run_config: Mapping[str, Any],
        as_of_today: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> "RunFolder":
        """Open the folder that `resume` names; `as_of_today` is as for `difference`.

        Raises SettingError if there is no such run, it has no checkpoint, or a setting differs that must not change.
        """
        folder = cls(find_run(settings.resume, settings.results_dir, resumes=True))
        if not (folder.path / CHECKPOINT).exists():
            raise SettingError(f"{folder.path} holds no checkpoint: no round was finished; start a new run.")
        if differing := difference(folder.settings(), run_config, MAY_DIFFER_ON_RESUME, as_of_today):
            name, old, new = differing
            raise SettingError(
                f"cannot resume {folder.path}: setting `{name}` was {old} and is now {new}; give the old value, or "
                "start a new run."
            )
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder while a server uses it. Raises SettingError if another process holds it."""
        with folder_lock(self.path, "a run"):
            # left by a server that was killed while writing
            for temporary in self.path.glob(".*.tmp"):
                temporary.unlink(missing_ok=True)
            yield

    def make_stores(self) -> None:
        """Make the folder of the clients' stores, by which workers on other machines recognise the run's home."""
        with explain_unwritable(stores(self.name), "stores' folder"):
            stores(self.name).mkdir(parents=True, exist_ok=True)

    def discard_unless_begun(self) -> None:
        """Remove the folder if not even line 0 was written: it holds no result, and `latest` must not find it."""
        if (self.path / LINES).exists() or (self.path / CHECKPOINT).exists():
            return
        # a folder that cannot be removed matters less than the error that led here
        with suppress(OSError):
            for name in (SETTINGS, ROSTER, STATUS, ".lock"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
            stores(self.name).rmdir()

    def refuse_fewer_rounds(self, rounds: int, finished: int, resume: str) -> None:
        """Refuse to end a resumed run before its last finished round, and `latest` for a run that has ended."""
        if resume == "latest" and rounds == finished and (self.path / SUMMARY).exists():
            raise SettingError(
                f"the newest run, {self.path}, has finished round {rounds} of {rounds}, so there is nothing to resume; "
                "set more `rounds` to continue it, or name an earlier run."
            )
        if rounds < finished:
            raise SettingError(
                f"setting `rounds` is {rounds}, but {self.path} has finished {finished}; resume with that many or more."
            )

    # --- JSON files -----------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with."""
        return self._read_json(SETTINGS, dict)

    def set_end(self, rounds: int, settings: Settings) -> None:
        """Store when the run is to end, for a later resume."""
        self._write_json(SETTINGS, {**self.settings(), "stop-patience": settings.stop_patience, "rounds": rounds})

    def roster(self) -> list[dict[str, Any]]:
        """The clients at the start of the run, at its last resume, or after the last one joined or left."""
        return self._read_json(ROSTER, list)

    def write_roster(self, roster: list[dict[str, Any]]) -> None:
        """Write the clients, with what each discloses."""
        self._write_json(ROSTER, roster)

    def status(self) -> dict[str, Any]:
        """The progress of the run; `stopped` if its process ended before the run did."""
        status = self._read_json(STATUS, dict)
        if status.get("state") in UNFINISHED and not is_held(self.path):
            status["state"] = "stopped"
        return status

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the progress of the run, for other programs."""
        self._write_json(STATUS, status)

    def summary(self) -> dict[str, Any]:
        """The summary of a run that has ended."""
        return self._read_json(SUMMARY, dict)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the run's summary, after the states of this process's clients are on disk."""
        with explain_unwritable(self.path):
            unsettled.settle()
        self._write_json(SUMMARY, summary)

    # --- lines ------------------------------------------------------------------------------------------------

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl and sync it to disk."""
        text = _as_text(line)
        with explain_unwritable(self.path), (self.path / LINES).open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        for hear in self.listeners:
            hear(line)

    def replace_last(self, line: Mapping[str, Any]) -> None:
        """Replace the newest line, completely or not at all."""
        self._rewrite_lines(line["round"] - 1, line)
        for hear in self.listeners:
            hear(line)

    def _rewrite_lines(self, last_round: int, *further_lines: Mapping[str, Any]) -> None:
        """Rewrite metrics.jsonl with the lines up to `last_round`, and further lines."""
        with self._replacing(LINES) as temporary, temporary.open("w", encoding="utf-8") as file:
            for line in self.each_line():
                if line["round"] <= last_round:
                    file.write(_as_text(line))
            for further_line in further_lines:
                file.write(_as_text(further_line))

    def lines(self, with_clients: bool = True) -> list[Line]:
        """All complete lines of metrics.jsonl, with their metrics by client, which may be large, or without.

        Raises SettingError if a line is damaged or missing.
        """
        # read before the lines: a run that ends meanwhile then has more lines, not fewer
        last_round = -1
        if (self.path / SUMMARY).exists():
            # an unreadable summary is reported when it is read itself
            with suppress(SettingError, KeyError, TypeError, ValueError):
                last_round = int(self.summary()["rounds"])
        lines = []
        for line in self.each_line():
            lines.append(line if with_clients else _without_clients(line))
        rounds = [line["round"] for line in lines]
        if rounds != list(range(len(rounds))) or len(rounds) <= last_round:
            raise SettingError(
                f"{self.path / LINES} lacks lines of finished rounds: a damaged disk or a cut copy does that; "
                "restore it from a copy, or `--resume` the run."
            )
        return lines

    def each_line(self) -> Iterator[Line]:
        """The lines with their metrics by client, one at a time in memory. Raises SettingError if one is damaged."""
        path = self.path / LINES
        if not path.exists():
            return
        try:
            for line in read_lines(path):
                if not isinstance(line, dict) or not isinstance(line.get("round"), int):
                    raise OSError("a line has no round")
                yield line
        except OSError as error:
            raise SettingError(f"{path} cannot be read ({error}); {REMEDY}.") from None

    def newest_line(self) -> Line:
        """The last line with its metrics by client; empty if there is none."""
        newest: Line = {}
        for line in self.each_line():
            newest = line
        return newest

    def write_client_table(self, rule: str) -> None:
        """Write the metrics by client of all rounds as one tidy table; `rule` is the run's own inference rule."""
        with self._replacing(client_tables.FILE) as temporary:
            client_tables.write(temporary, client_tables.rows_of_run(self.each_line(), self.roster(), rule))

    def truncate(self, last_round: int) -> None:
        """Drop everything after the line of `last_round`: later rounds are run again.

        Raises SettingError if a line up to there is missing.
        """
        rounds = [line["round"] for line in self.each_line() if line["round"] <= last_round]
        if rounds != list(range(last_round + 1)):
            raise SettingError(
                f"{self.path / LINES} no longer holds a line for each of the {last_round} finished rounds; {REMEDY}."
            )
        self._rewrite_lines(last_round)
        with explain_unwritable(self.path):
            # files about the end or about later rounds are outdated
            for name in (SUMMARY, "report.html", client_tables.FILE):
                (self.path / name).unlink(missing_ok=True)

    # --- the checkpoint ---------------------------------------------------------------------------------------

    def save_checkpoint(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """Write the server's state after a round: tensors and a JSON value. The states of this process's clients are
        synced to disk first, since the checkpoint relies on them."""
        metadata = {"run": self.name, "meta": json.dumps(meta, allow_nan=False)}
        with explain_unwritable(self.path):
            unsettled.settle()
        with self._replacing(CHECKPOINT) as temporary:
            write_tensors(temporary, tensors, metadata)

    def load_checkpoint(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Inverse of `save_checkpoint`. Raises SettingError if it cannot be read, or its folder was renamed."""
        path = self.path / CHECKPOINT
        try:
            tensors, metadata = read_tensors(path)
            run, meta = metadata["run"], json.loads(metadata["meta"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise SettingError(f"the checkpoint {path} cannot be read ({error}); start a new run.") from None
        if run != self.name:
            raise SettingError(
                f"cannot resume {self.path}: its name was {run} when it was interrupted, and its clients keep their "
                "models under that name; rename it back."
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
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
        with self._replacing(name) as temporary:
            temporary.write_text(text)

    @contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        """A temporary file that replaces `name` after it is complete, and is removed otherwise."""
        with explain_unwritable(self.path), replacing(self.path / name) as temporary:
            yield temporary


# --- finding runs -----------------------------------------------------------------------------------------------


def find_run(name: str, results_dir: str, *, resumes: bool = False) -> Path:
    """The folder of a run, by its path, its name in the results folder, `latest`, or its number in Flower.

    `latest` is the newest run with a checkpoint; one that `resumes` must be the newest of all. Raises SettingError.
    """
    root = results_root(results_dir)
    if name == "latest":
        return _find_latest(root, resumes)
    places = [Path(os.path.expanduser(name)), root / name]
    for path in places:
        if path.is_absolute() and (path / SETTINGS).exists():
            # the last part of the path is the run's name, which `..` or a link would hide
            return path.resolve()
    if name.isdecimal() and (folder := find_flower_run(name, root)):
        return folder.resolve()
    if any((path / "comparison.json").exists() for path in places):
        raise SettingError(f"{shown(name)} is a comparison, which `protosphere compare --resume` continues.")
    raise SettingError(
        f"setting `resume` is {shown(name)}, but no run with a {SETTINGS} is there or in {root}; give a run's folder, "
        'its name in the results folder, its number in `flwr ls`, or "latest".'
    )


def _find_latest(root: Path, resumes: bool) -> Path:
    files = sorted(root.glob(f"*/{SETTINGS}"), key=lambda file: file.stat().st_mtime_ns)
    runs = [file.parent.resolve() for file in files if _is_run(file.parent)]
    runs_with_rounds = [run for run in runs if (run / CHECKPOINT).exists()]
    if resumes and runs and runs[-1:] != runs_with_rounds[-1:]:
        earlier = f", or resume an earlier run: {runs_with_rounds[-1].name}" if runs_with_rounds else ""
        raise SettingError(
            f'setting `resume` is "latest", but the newest run, {runs[-1]}, has no finished round; start it '
            f"again{earlier}."
        )
    if not runs_with_rounds:
        raise SettingError(f'setting `resume` is "latest", but {root} holds no run; start one first.')
    return runs_with_rounds[-1]


def _is_run(folder: Path) -> bool:
    """Whether a folder with a settings.json belongs to a run: other programs use this file name, too."""
    if any((folder / name).exists() for name in (STATUS, LINES, CHECKPOINT)):
        return True
    with suppress(SettingError):
        return "strategy" in RunFolder(folder).settings()
    return False


def find_flower_run(flower_run: str, results: Path) -> Path | None:
    """The folder of the run with this number in Flower, in the results folder."""
    for path in sorted(results.glob(f"*/{STATUS}"), reverse=True) if flower_run else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(path.read_bytes())["flower_run"] == flower_run:
                return path.parent
    return None


def append_log(log: Path, text: str) -> None:
    """Append to a log, which a resumed run continues; a log that cannot be written is left as it is."""
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(text)


def difference(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    indifferent: Set[str],
    as_of_today: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[str, str, str] | None:
    """The first setting, other than `indifferent` ones, in which two runs differ, with both values in words.

    `as_of_today` converts old settings to those that this version would store.
    """
    # the method first, since the rest needs its code, and only the code of the new settings may be run
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
    """Inside, disk errors become a SettingError of one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(
            f"the {what} {folder} cannot be written ({reason}); free space there, or set `results-dir` or "
            "PROTOSPHERE_HOME to a writable folder."
        ) from None


def _without_clients(line: Line) -> Line:
    """A line without its metrics by client."""
    seconds = line.get("time")
    if isinstance(seconds, dict):
        seconds = {name: value for name, value in seconds.items() if name not in TIMES_BY_CLIENT}
        line = {**line, "time": seconds}
    return {**line, "clients": {}}


def _as_text(line: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl."""
    return json.dumps(line, allow_nan=False) + "\n"
