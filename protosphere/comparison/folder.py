"""A comparison's folder: comparison.json, and a folder for each trial with its run."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from protosphere.comparison.spec import INDIFFERENT, ComparisonSpec, checked
from protosphere.comparison.trials import PLACES, Trial
from protosphere.core.errors import SettingError
from protosphere.core.files import folder_lock, refuse_link, replacing
from protosphere.core.home import discard_stores, results_root
from protosphere.core.settings import is_run_name, plain_name, shown
from protosphere.core.text import own_version
from protosphere.record.folder import RunFolder, difference
from protosphere.strategies import as_of_today, known_settings
from protosphere.strategies.trust import named, refuse_untrusted

FORMAT = 5
FILE = "comparison.json"
TRIALS = "trials"  # folder of the trials' folders


class ComparisonFolder:
    """`<time>-compare-<name>/` in the results folder: comparison.json, `trials/<trial>/<run>/`, tables, report."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(
        cls, spec: ComparisonSpec, trials: Sequence[Trial], results: str, jobs: int | None = None
    ) -> "ComparisonFolder":
        """A new folder in the results folder.

        Args:
            jobs: the number of trials at a time, for a resume that gives no other.
        """
        root = Path(os.path.abspath(results_root(results)))
        if (root / FILE).exists():
            raise SettingError(f"{root} is itself a comparison; --resume {root} continues it.")
        slug = plain_name(spec.name, 60)
        now = time.time()
        content = {"format": FORMAT, "version": own_version(), "comparison": asdict(spec)}
        content |= {"trials": [asdict(trial) for trial in trials], "jobs": jobs}
        try:
            # another comparison of this name may have begun in this second
            for second in itertools.count():
                stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now + second))
                path = root / f"{stamp}-compare-{slug}"
                with suppress(FileExistsError):
                    path.mkdir(parents=True)
                    break
            with replacing(path / FILE) as temporary:
                temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
        except OSError as error:
            raise SettingError(
                f"the results folder {root} cannot be written ({error.strerror}); name another with --results."
            ) from None
        return cls(path)

    @classmethod
    def find(cls, name: str, results: str = "") -> "ComparisonFolder":
        """The folder that `--resume` names: a path, a name in the results folder, or `latest`."""
        root = results_root(results)
        if name == "latest":
            files = sorted(root.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime_ns)
            if files:
                return cls(files[-1].parent.absolute())
        for path in (Path(os.path.expanduser(name)), root / name):
            if (path / FILE).exists():
                return cls(path.absolute())
        raise SettingError(
            f"no comparison is {shown(name)}, by folder or by name in {root}; `protosphere runs` lists them."
        )

    def read(self, trust: bool = False) -> tuple[ComparisonSpec, list[Trial]]:
        """The comparison and its trials, as they were resolved when it was started.

        Args:
            trust: whether code that lies in the folder may be run.
        """
        try:
            content = self._content()
            version = f"Protosphere {content['version']}, format {content['format']}"
            if content["format"] != FORMAT:
                raise ValueError(f"it was written by {version}; this is {own_version()}, format {FORMAT}")
            spec = checked(ComparisonSpec, content["comparison"])
            trials = [Trial(**trial) for trial in content["trials"]]
            for trial in trials:
                # its folder is deleted before its run, so it must lie here
                if not is_run_name(trial.name) or not isinstance(trial.settings, dict):
                    raise ValueError(f"{shown(trial.name)} is not a run of it")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingError(
                f"{self.path / FILE} cannot be read ({type(error).__name__}: {error}); start again."
            ) from None
        entries = [*spec.methods, *spec.datasets, *spec.partitions]
        every_settings = [spec.settings, *(entry.settings for entry in entries), *(trial.settings for trial in trials)]
        refuse_untrusted(self.path, chain.from_iterable(map(named, every_settings)), trust)
        for trial in trials:
            names = known_settings(trial.settings.get("strategy", "")).keys() - set(PLACES)
            if differing := sorted(names ^ trial.settings.keys()):
                raise SettingError(
                    f"{self.path} was written by {version}, whose settings differ in `{differing[0]}`; this is "
                    f"{own_version()}. Use that version, or start again."
                )
        return spec, trials

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / FILE).read_bytes())
        return content

    @property
    def jobs(self) -> int | None:
        """The number of trials at a time with which the comparison was started; None for the default."""
        jobs = self._content().get("jobs")
        return jobs if isinstance(jobs, int) else None

    def hold(self) -> AbstractContextManager[None]:
        """Lock the folder while trials run in it."""
        return folder_lock(self.path, "a comparison")

    def of(self, trial: Trial) -> Path:
        """The trial's folder."""
        return self.path / TRIALS / trial.name

    def run_of(self, trial: Trial) -> Path | None:
        """The folder of the trial's finished run; None while it has none. A run with other settings is refused."""
        for file in sorted(self.of(trial).glob("*/summary.json")):
            try:
                run = RunFolder(file.parent)
                summary, settings = run.summary(), run.settings()
                completed = summary["status"] == "completed"
            except (SettingError, KeyError):
                # a damaged run is run again
                continue
            if completed:
                if differing := difference(settings, as_of_today(trial.settings), INDIFFERENT, as_of_today):
                    name, stored_value, current_value = differing
                    raise SettingError(
                        f"{file.parent} is not a run of this comparison: its setting `{name}` is {stored_value}, here "
                        f"it is {current_value}; move it away."
                    )
                return file.parent
        return None

    def discard(self, trial: Trial) -> None:
        """Delete what an unfinished trial left, also its clients' models."""
        refuse_link(self.path / TRIALS)
        self.discard_models(trial)
        shutil.rmtree(self.of(trial), ignore_errors=True)

    def discard_models(self, trial: Trial) -> None:
        """Delete the clients' models of a trial's runs."""
        for file in self.of(trial).glob("*/settings.json"):
            if is_run_name(file.parent.name):
                discard_stores(file.parent.name)
