"""The run's folder: settings, one line of metrics a round, the checkpoint, the summary. Every write is whole or
not at all (a temporary file, then a rename)."""

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from federation.settings import MAY_DIFFER_ON_RESUME, SettingError, Settings, home


class RunFolder:
    """`<time>-<strategy>-<dataset>/` in the results folder.

    Holds settings.json, roster.json, metrics.jsonl, checkpoint.safetensors and summary.json.
    """

    def __init__(self, path: Path):
        self.path = path

    @property
    def name(self) -> str:
        """The run's key: client stores are kept under it."""
        return self.path.name

    @classmethod
    def create(cls, settings: Settings, run_config: Mapping[str, Any]) -> "RunFolder":
        """A new folder for this run.

        Raises:
            SettingError: when the results folder cannot be written.
        """
        root = results_root(settings.results_dir)
        words = (
            time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
            settings.strategy,
            Path(settings.dataset).name,
        )
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(words)).strip("-")
        for attempt in range(1, 1000):
            path = root / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise _unwritable(root, error) from None
            folder = cls(path)
            folder._write_json("settings.json", dict(run_config))
            return folder
        raise SettingError(f"the results folder {root} holds a thousand runs of this second; choose another.")

    @classmethod
    def resume(cls, settings: Settings, run_config: Mapping[str, Any]) -> "RunFolder":
        """The folder that `resume` names (a path, a name in the results folder, or `latest`).

        Raises:
            SettingError: no such run, no checkpoint yet, or a setting that may not change does.
        """
        folder = cls(find_run(settings.resume, settings.results_dir))
        if not (folder.path / "checkpoint.safetensors").exists():
            raise SettingError(f"{folder.path} holds no checkpoint: no round was finished; start a new run.")
        old = folder.settings()
        for name in sorted(old.keys() | run_config.keys()):
            if name not in MAY_DIFFER_ON_RESUME and old.get(name) != run_config.get(name):
                raise SettingError(
                    f"cannot resume {folder.path}: setting `{name}` was {json.dumps(old.get(name))} and is now "
                    f"{json.dumps(run_config.get(name))}; give the old value, or start a new run."
                )
        return folder

    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with."""
        return dict(self._read_json("settings.json"))

    def roster(self) -> list[dict[str, Any]]:
        """Who took part when the run was started, or last resumed."""
        return list(self._read_json("roster.json"))

    def write_roster(self, roster: list[dict[str, Any]]) -> None:
        """Who took part, and what each discloses."""
        self._write_json("roster.json", roster)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The run's outcome."""
        self._write_json("summary.json", summary)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl and see it to the disk."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """All finished lines of metrics.jsonl; a line that a crash cut short is left out."""
        path = self.path / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def truncate(self, last_round: int) -> None:
        """Drop what was written after the line of `last_round`: those rounds are run again."""
        kept = [line for line in self.lines() if line["round"] <= last_round and not line.get("final")]
        self._write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        (self.path / "summary.json").unlink(missing_ok=True)

    def save_checkpoint(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """The server's state after a round: tensors, and a JSON value beside them."""
        temporary = self.path / ".checkpoint.tmp"
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(whole, temporary, metadata={"meta": json.dumps(meta)})
        os.replace(temporary, self.path / "checkpoint.safetensors")

    def load_checkpoint(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Inverse of `save_checkpoint`."""
        path = self.path / "checkpoint.safetensors"
        try:
            with safe_open(path, framework="pt") as file:
                meta = json.loads(file.metadata()["meta"])
                return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise SettingError(f"the checkpoint {path} cannot be read ({error}).") from None

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise SettingError(f"{self.path / name} cannot be read ({error}).") from None

    def _write_json(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.tmp"
        try:
            temporary.write_text(text)
            os.replace(temporary, self.path / name)
        except OSError as error:
            raise _unwritable(self.path, error) from None


def results_root(results_dir: str) -> Path:
    """The folder that holds the runs' folders."""
    return Path(results_dir).expanduser() if results_dir else home() / "results"


def find_run(name: str, results_dir: str) -> Path:
    """The folder of a finished or cut run: a path, a name in the results folder, or `latest`.

    Raises:
        SettingError: when there is none.
    """
    root = results_root(results_dir)
    if name == "latest":
        runs = sorted(path.parent for path in root.glob("*/settings.json"))
        if not runs:
            raise SettingError(f'setting `resume` is "latest", but {root} holds no run.')
        return max(runs, key=lambda run: (run / "settings.json").stat().st_mtime_ns)
    for path in (Path(name).expanduser(), root / name):
        if path.is_absolute() and (path / "settings.json").exists():
            return path
    raise SettingError(f'setting `resume` is "{name}", but no run with a settings.json is there or in {root}.')


def _unwritable(path: Path, error: OSError) -> SettingError:
    return SettingError(
        f"the results folder {path} cannot be written ({error.strerror}); set `results-dir` or "
        "PROTOSPHERE_HOME to a folder of yours."
    )
