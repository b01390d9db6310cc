"""A comparison's folder: comparison.json, a folder a trial with its run, and which of them are finished."""

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

from protosphere.comparison.spec import FIGURES, INDIFFERENT, ComparisonSpec, checked
from protosphere.comparison.trials import PLACES, Trial
from protosphere.core.errors import SettingError
from protosphere.core.files import folder_lock, refuse_link, replacing
from protosphere.core.home import discard_stores, results_root
from protosphere.core.settings import is_run_name, plain_name, shown
from protosphere.core.text import own_version
from protosphere.record.folder import RunFolder, difference
from protosphere.strategies import as_of_today, known_settings
from protosphere.strategies.trust import named, refuse_untrusted

FORMAT = 4
FILE = "comparison.json"
TRIALS = "trials"  # folder of the trials' folders


class ComparisonFolder:
    """`<time>-compare-<name>/` in the results folder: comparison.json, `trials/<trial>/<run>/`, tables, report."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(
        cls, comparison: ComparisonSpec, trials: Sequence[Trial], results: str, jobs: int | None = None
    ) -> "ComparisonFolder":
        """A new folder in the results folder.

        Args:
            jobs: trials at a time, for a resume that says no other number; None for what the machine holds.

        Raises:
            SettingError: it cannot be written, it is full of such names, or the results folder is itself a comparison.
        """
        root = Path(os.path.abspath(results_root(results)))
        if (root / FILE).exists():
            raise SettingError(f"{root} is itself a comparison; --resume {root} continues it.")
        slug = plain_name(comparison.name, 60)
        now = time.time()
        try:
            # another of that name may have begun in this second
            for second in itertools.count():
                stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now + second))
                path = root / f"{stamp}-compare-{slug}"
                with suppress(FileExistsError):
                    path.mkdir(parents=True)
                    break
            content = {"format": FORMAT, "version": own_version(), "comparison": asdict(comparison)}
            content |= {"trials": [asdict(trial) for trial in trials], "jobs": jobs}
            with replacing(path / FILE) as temporary:
                temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
        except OSError as error:
            raise SettingError(
                f"the results folder {root} cannot be written ({error.strerror}); name another with --results."
            ) from None
        return cls(path)

    @classmethod
    def find(cls, name: str, results: str = "") -> "ComparisonFolder":
        """The folder that `--resume` names: a path, a name in the results folder, or `latest`.

        Raises:
            SettingError: there is none.
        """
        root = results_root(results)
        if name == "latest":
            files = sorted(root.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime_ns)
            if not files:
                raise SettingError(f"--resume is latest, but {root} holds no comparison; start one first.")
            return cls(files[-1].parent.absolute())
        place = Path(os.path.expanduser(name))
        for path in (place, root / name):
            if (path / FILE).exists():
                return cls(path.absolute())
        single = (place / "settings.json").exists()
        other = "; it is a single run, which `protosphere run --resume` continues" if single else ""
        raise SettingError(f"--resume is {shown(name)}, but no {FILE} is there or in {root}{other}.")

    def read(self, trust: bool = False) -> tuple[ComparisonSpec, list[Trial]]:
        """The comparison and its trials, as they were resolved when it was started.

        Args:
            trust: whether code that lies in the folder may be run.

        Raises:
            SettingError: the file is broken, was written by another version, or names code that may not run.
        """
        file = self.path / FILE
        try:
            content = json.loads(file.read_bytes())
            if content["format"] == FORMAT:
                comparison = checked(ComparisonSpec, content["comparison"])
                trials = [Trial(**trial) for trial in content["trials"]]
                for trial in trials:
                    # a trial's folder is deleted before its run: it must lie here
                    if not is_run_name(trial.name) or not isinstance(trial.settings, dict):
                        raise ValueError(f"{shown(trial.name)} is not a run of it")
            written = f"Protosphere {content['version']}, format {content['format']}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingError(f"{file} cannot be read ({type(error).__name__}: {error}); start again.") from None
        this_version = f"this is {own_version()}, format {FORMAT}"
        other_version = f"{self.path} was written by other code than this ({written}; {this_version})"
        if content["format"] != FORMAT:
            raise SettingError(f"{other_version}: continue with that one, or start again.")
        for metric in comparison.metrics:
            if not metric.of_domain and metric.figure not in FIGURES:
                raise SettingError(f"{other_version}, which has the metric `{metric}`: use that one, or start again.")
        entries = (*comparison.methods, *comparison.datasets, *comparison.partitions)
        every = [comparison.settings, *(entry.settings for entry in entries), *(trial.settings for trial in trials)]
        refuse_untrusted(self.path, chain.from_iterable(map(named, every)), trust)
        for trial in trials:
            setting_names = known_settings(trial.settings.get("strategy", "")).keys() - set(PLACES)
            if differing := sorted(setting_names ^ trial.settings.keys()):
                raise SettingError(
                    f"{other_version}, whose settings differ in `{differing[0]}`: use that one, or start again."
                )
        return comparison, trials

    @property
    def jobs(self) -> int | None:
        """Trials at a time, as the comparison was started; None for what the machine holds."""
        jobs = json.loads((self.path / FILE).read_bytes()).get("jobs")
        return jobs if isinstance(jobs, int) else None

    def hold(self) -> AbstractContextManager[None]:
        """Hold the folder while trials run in it.

        Raises:
            SettingError: another process does.
        """
        return folder_lock(self.path, "a comparison")

    def of(self, trial: Trial) -> Path:
        """The trial's folder."""
        return self.path / TRIALS / trial.name

    def run_of(self, trial: Trial) -> Path | None:
        """The folder of the trial's finished run; None while it has none.

        Raises:
            SettingError: a finished run with other settings lies there.
        """
        for file in sorted(self.of(trial).glob("*/summary.json")):
            try:
                run = RunFolder(file.parent)
                summary, settings = run.summary(), run.settings()
                completed = summary["status"] == "completed"
            except (SettingError, KeyError):
                # a damaged one is run again
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
        """Take away what an unfinished or failed trial left, the models of its clients included.

        Raises:
            SettingError: a link lies in the place of the trials' folder.
        """
        refuse_link(self.path / TRIALS)
        self.discard_models(trial)
        shutil.rmtree(self.of(trial), ignore_errors=True)

    def discard_models(self, trial: Trial) -> None:
        """Take away the clients' models of a trial's runs: a comparison's would soon fill the disk."""
        for file in self.of(trial).glob("*/settings.json"):
            if is_run_name(file.parent.name):
                discard_stores(file.parent.name)
