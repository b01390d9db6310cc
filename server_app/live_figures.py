"""Live figures: what metrics.jsonl gets goes to TensorBoard, Weights & Biases and MLflow, too, as it comes.

Each sink has a thread of its own, so that none holds a round up; one that fails costs a warning and is left out. Its
package is loaded when a run asks for it.
"""

import hashlib
import importlib.util
import logging
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from protosphere.core.errors import SettingError
from protosphere.core.files import own_folder
from protosphere.core.settings import Settings, shown
from protosphere.record.folder import RunFolder
from protosphere.server_app.callbacks import Callback, RunView

PATIENCE = 60.0  # seconds at the end for what a sink has not taken yet
NAMES = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
EVALUATIONS = ("evaluation", "ensemble")  # groups of a line's figures
TRAININGS = ("training", "server", "bytes")
TIMES = ("round", "server")  # the others are of single clients
PROJECT = "protosphere"  # in Weights & Biases; in MLflow the experiment
TAG = "protosphere.run"  # by which a resumed run finds its own in MLflow
MOST_PARAMETERS = 100  # that MLflow takes at once

log = logging.getLogger("protosphere")


class Sink(Protocol):
    """Takes figures in the order of their rounds; may raise anything.

    Made of the run's folder, of the last round of the lines that a resumed run keeps, which come first (0 for a new
    run), and of the sink's own setting.
    """

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take figures."""

    def close(self, completed: bool) -> None:
        """The run is over: completed, or cut."""


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a line of metrics.jsonl by name, `group/part/...`, those of single clients left out."""
    values: dict[str, float] = {}
    for group in EVALUATIONS:
        if group in line:
            parts = {name: value for name, value in line[group].items() if name != "rules"}
            values |= _flatten(line[group].get("rules", {}) | parts, group)
    if line["round"]:
        values |= _flatten({group: line.get(group, {}) for group in TRAININGS}, "")
        values |= {f"time/{name}": line["time"][name] for name in TIMES if name in line["time"]}
        values["problems/clients"] = len(line["problems"])
    return values


def _flatten(table: Mapping[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, plain in zip(table, _tags(list(table)), strict=True):
        value = table[name]
        full = f"{prefix}/{plain}" if prefix else plain
        if isinstance(value, Mapping):
            flat |= _flatten(value, full)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[full] = value
    return flat


def _tags(names: Sequence[str]) -> list[str]:
    """A domain's name is a folder's, and not every sink takes every letter; two names stay two."""
    tags = [re.sub(r"[^\w.-]", "_", name) for name in names]
    counts = Counter(tags)
    for place, name in enumerate(names):
        if tags[place] != name and counts[tags[place]] > 1:
            # a digest and no number: rounds may have other names beside one
            tags[place] += "-" + hashlib.blake2b(name.encode(errors="replace"), digest_size=3).hexdigest()
    return tags


def wanted(settings: Settings) -> list[str]:
    """The sinks that the settings ask for."""
    return [name for name in SINKS if getattr(settings, name)]


def refuse_missing_packages(settings: Settings) -> None:
    """Refuse, before the run has a folder, a sink whose package is not installed.

    Raises:
        SettingError: names the sink and the extra to install.
    """
    for name in wanted(settings):
        spec = importlib.util.find_spec(name)
        # these programs keep files in folders of their own names, which pass for packages without an origin
        if spec is None or spec.origin is None:
            raise SettingError(
                f"setting `{name}` is {shown(getattr(settings, name))}, but {NAMES[name]}'s package cannot be "
                f"imported here; pip install 'protosphere[{name}]', or remove the setting."
            )


class LiveFigures(Callback):
    """Hands each line of the run to the sinks that the settings name, those that a resumed run has included."""

    def on_start(self, run: RunView) -> bool:
        settings, self._folder = run.settings, run.folder
        self._newest: Mapping[str, Any] | None = None
        self._feeds = [_Feed(name, getattr(settings, name), run.folder) for name in wanted(settings)]
        return True

    def on_round(self, line: Mapping[str, Any]) -> bool:
        self._newest = line
        for feed in self._feeds:
            feed.put(line)
        return True

    def on_end(self, completed: bool) -> None:
        # of a run that ended early the newest line has had one more evaluation
        line = self._folder.lines(with_clients=False)[-1] if completed and self._newest is not None else {}
        is_replaced = line.get("last") and not (self._newest or {}).get("last")
        for feed in self._feeds:
            if is_replaced:
                feed.put(line)
            feed.close(completed)


class _Feed:
    """One sink and its thread.

    Args:
        place: the sink's own setting.
    """

    def __init__(self, name: str, place: bool | str, folder: RunFolder):
        self._name = name
        self._lines: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._completed = False
        # of a resumed run
        lines = folder.lines(with_clients=False)
        for line in lines:
            self._lines.put(line)
        last_round = lines[-1]["round"] if lines else 0
        # a daemon: a server that never answers must not keep the process
        self._thread = threading.Thread(target=self._work, args=(folder, last_round, place), name=name, daemon=True)
        self._is_started = False

    def put(self, line: Mapping[str, Any]) -> None:
        """Take a line that the folder has just got; with the first one of this process the sink is opened."""
        self._lines.put(line)
        if not self._is_started:
            self._is_started = True
            try:
                self._thread.start()
            # a machine without a thread left costs the run no more than a warning
            except RuntimeError as error:
                self._warn(str(error))

    def close(self, completed: bool) -> None:
        """Let the sink take what there is, and close it."""
        if not self._thread.is_alive():
            return
        self._completed = completed
        self._lines.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._warn(f"it has not taken all figures within {PATIENCE:g} s")

    def _work(self, folder: RunFolder, last_round: int, place: bool | str) -> None:
        try:
            sink = SINKS[self._name](folder, last_round, place)
            while (line := self._lines.get()) is not None:
                sink.write(line["round"], figures_of(line))
            sink.close(self._completed)
        # whatever these packages may raise, ends of the process included: the run goes on without them
        except BaseException as error:
            self._warn(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _warn(self, reason: str) -> None:
        log.warning(
            "warning: %s gets no more figures of this run (%s); metrics.jsonl has all", NAMES[self._name], reason
        )


class TensorBoard:
    """Event files in the run's folder, written anew when a run is resumed: so no round is there twice."""

    def __init__(self, folder: RunFolder, last_round: int, place: bool | str):
        from torch.utils.tensorboard import SummaryWriter

        events = own_folder(folder.path, "tensorboard")
        for old in events.glob("events.out.tfevents.*"):
            old.unlink()
        # a TensorBoard that looks on forgets what it had read from there
        self._writer: Any = SummaryWriter(str(events), purge_step=0 if last_round else None)

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take figures, and see them to the disk."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()

    def close(self, completed: bool) -> None:
        """End the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of the run's name, in the mode that WANDB_MODE says; its offline files lie in the run's folder.

    Its steps are the rounds, over which its charts are drawn.
    """

    def __init__(self, folder: RunFolder, last_round: int, place: bool | str):
        import wandb

        # it would ask the terminal for a key, and wait
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise PermissionError("it has no key here; `wandb login` keeps one, and WANDB_MODE=offline needs none")
        begun = own_folder(folder.path, "wandb").is_dir()
        # of the machine and its code nothing is to leave but the run's figures and settings
        quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        self._run: Any = wandb.init(
            project=PROJECT,
            id=folder.name,
            name=folder.name,
            dir=str(folder.path),
            config=folder.settings(),
            resume="allow",
            settings=quiet,
        )
        self._run.define_metric("*", step_metric="round")
        # offline it does not know what was written before
        last_step = last_round + 1 if self._run.offline else self._run.step
        self._next = last_step if begun else 0

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take figures, unless they were there before the run was resumed."""
        if round_number >= self._next:
            self._run.log({"round": round_number, **values}, step=round_number)

    def close(self, completed: bool) -> None:
        """Send what is left, and say how the run ended."""
        self._run.finish(exit_code=0 if completed else 1)


class MLflow:
    """A run in the experiment `protosphere` of a tracking server; a resumed run goes on with its own."""

    def __init__(self, folder: RunFolder, last_round: int, place: bool | str):
        from mlflow import MlflowClient

        uri = place if isinstance(place, str) else None
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        runs = self._client.search_runs([number], filter_string=f"tags.`{TAG}` = '{folder.name}'", max_results=1)
        self._resumed = bool(runs)
        self._newest: dict[str, int] = {}
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(number, tags={TAG: folder.name}, run_name=folder.name).info.run_id
            self._describe(folder.settings())

    def _describe(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(name, str(value)) for name, value in settings.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + MOST_PARAMETERS])

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take figures, but those that were there before the run was resumed."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        fresh = {name: value for name, value in values.items() if round_number > self._last_round(name)}
        if fresh:
            self._client.log_batch(self._id, [Metric(name, value, now, round_number) for name, value in fresh.items()])

    def _last_round(self, name: str) -> int:
        """The last round that a metric had when the run was resumed."""
        if self._resumed and name not in self._newest:
            history = self._client.get_metric_history(self._id, name)
            self._newest[name] = max((metric.step for metric in history), default=-1)
        return self._newest.get(name, -1)

    def close(self, completed: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, "FINISHED" if completed else "FAILED")


SINKS: Mapping[str, Callable[[RunFolder, int, bool | str], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
