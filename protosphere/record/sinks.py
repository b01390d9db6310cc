"""Where live figures can go: TensorBoard's files, Weights & Biases, MLflow. Each is loaded when a run asks for it.

A figure is of a round, or of the models that the round left (`after`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from protosphere.core.files import own_folder

PROJECT = "protosphere"  # in Weights & Biases; in MLflow the experiment
TAG = "protosphere.run"  # by which a resumed run finds its own in MLflow
MOST_PARAMETERS = 100  # that MLflow takes at once


@dataclass(frozen=True)
class Beginning:
    """What a sink is opened for.

    Attributes:
        folder: the run's; its name is the run's. settings: of the run, by their full names.
        last: the last round of the lines that a resumed run keeps, which come first; 0 for a new run.
        place: the sink's own setting.
    """

    folder: Path
    settings: Mapping[str, Any]
    last: int
    place: bool | str


class Sink(Protocol):
    """Takes figures in the order of their rounds; may raise anything."""

    def write(self, of_round: int, after: bool, values: Mapping[str, float]) -> None:
        """Take figures."""

    def close(self, completed: bool) -> None:
        """The run is over: completed, or cut."""


class TensorBoard:
    """Event files in the run's folder, written anew when a run is resumed: so no round is there twice."""

    def __init__(self, beginning: Beginning):
        from torch.utils.tensorboard import SummaryWriter

        folder = own_folder(beginning.folder, "tensorboard")
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        # a TensorBoard that looks on forgets what it had read from there
        self._writer: Any = SummaryWriter(str(folder), purge_step=0 if beginning.last else None)

    def write(self, of_round: int, after: bool, values: Mapping[str, float]) -> None:
        """Take figures, and see them to the disk."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, of_round)
        self._writer.flush()

    def close(self, completed: bool) -> None:
        """End the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of the run's name, in the mode that WANDB_MODE says; its offline files lie in the run's folder.

    Its steps only grow: 2 t for round t, 2 t + 1 for what round t left; `round` is what its charts are drawn over.
    """

    def __init__(self, beginning: Beginning):
        import wandb

        # it would ask the terminal for a key, and wait
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise PermissionError("it has no key here; `wandb login` keeps one, and WANDB_MODE=offline needs none")
        begun = own_folder(beginning.folder, "wandb").is_dir()
        # of the machine and its code nothing is to leave but the run's figures and settings
        quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        name = beginning.folder.name
        self._run: Any = wandb.init(
            project=PROJECT,
            id=name,
            name=name,
            dir=str(beginning.folder),
            config=dict(beginning.settings),
            resume="allow",
            settings=quiet,
        )
        self._run.define_metric("*", step_metric="round")
        # offline it does not know what was written before
        last_step = 2 * beginning.last + 1 if self._run.offline else self._run.step
        self._next = last_step if begun else 0

    def write(self, of_round: int, after: bool, values: Mapping[str, float]) -> None:
        """Take figures, unless they were there before the run was resumed."""
        step = 2 * of_round + after
        if step >= self._next:
            self._run.log({"round": of_round, **values}, step=step)

    def close(self, completed: bool) -> None:
        """Send what is left, and say how the run ended."""
        self._run.finish(exit_code=0 if completed else 1)


class MLflow:
    """A run in the experiment `protosphere` of a tracking server; a resumed run goes on with its own."""

    def __init__(self, beginning: Beginning):
        from mlflow import MlflowClient

        name = beginning.folder.name
        uri = beginning.place if isinstance(beginning.place, str) else None
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        runs = self._client.search_runs([number], filter_string=f"tags.`{TAG}` = '{name}'", max_results=1)
        self._resumed = bool(runs)
        self._newest: dict[str, int] = {}
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(number, tags={TAG: name}, run_name=name).info.run_id
            self._describe(beginning.settings)

    def _describe(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(name, str(value)) for name, value in settings.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + MOST_PARAMETERS])

    def write(self, of_round: int, after: bool, values: Mapping[str, float]) -> None:
        """Take figures, but those that were there before the run was resumed."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        fresh = {name: value for name, value in values.items() if of_round > self._last_round(name)}
        if fresh:
            self._client.log_batch(self._id, [Metric(name, value, now, of_round) for name, value in fresh.items()])

    def _last_round(self, name: str) -> int:
        """The last round that a metric had when the run was resumed."""
        if self._resumed and name not in self._newest:
            history = self._client.get_metric_history(self._id, name)
            self._newest[name] = max((metric.step for metric in history), default=-1)
        return self._newest.get(name, -1)

    def close(self, completed: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, "FINISHED" if completed else "FAILED")


SINKS: Mapping[str, Callable[[Beginning], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
