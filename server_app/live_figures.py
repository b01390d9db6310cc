"""TensorBoard, Weights & Biases and MLflow: each gets the metrics of every line of metrics.jsonl, with the round as its
step. A package is loaded only if a run asks for it, and a failing tracker causes a warning and never ends the run."""

import importlib.util
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings, shown
from protosphere.server_app.callbacks import Callback

if TYPE_CHECKING:
    from protosphere.server_app.strategy import PrototypeStrategy

# groups of a line; the others hold metrics of single clients
GROUPS = ("training", "server", "bytes", "evaluation", "ensemble")
PROJECT = "protosphere"  # the project in Weights & Biases, the experiment in MLflow

log = logging.getLogger("protosphere")


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line over all clients, by name: `evaluation/rules/classifier/test/mean`."""
    values: dict[str, float] = {}
    for group in GROUPS:
        values |= _flatten(line.get(group, {}), group)
    return values


def _flatten(table: Mapping[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in table.items():
        # a domain is named after its folder, and trackers do not accept all characters
        full_name = prefix + "/" + re.sub(r"[^\w.-]", "_", name)
        if isinstance(value, Mapping):
            flat |= _flatten(value, full_name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[full_name] = value
    return flat


class Tracker(Callback):
    """Base class: it calls a tracker's `open`, `log` and `close`, and survives their exceptions."""

    name = ""

    def on_start(self, strategy: "PrototypeStrategy") -> bool:
        self._run, self._is_open = strategy, True
        self._newest: Mapping[str, Any] = {}
        self._attempt(self.open, strategy)
        return True

    def on_round(self, line: Mapping[str, Any]) -> bool:
        self._newest = line
        self._attempt(self.log, line["round"], scalars(line))
        return True

    def on_end(self, completed: bool) -> None:
        if completed and self._newest and not self._newest.get("last"):
            # a run that ends early evaluates once more and replaces its last line
            line = self._run.folder.lines(with_clients=False)[-1]
            self._attempt(self.log, line["round"], scalars(line))
        self._attempt(self.close, completed)

    def _attempt(self, call: Any, *arguments: Any) -> None:
        if not self._is_open:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._is_open = False
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            log.warning("warning: %s gets no more metrics of this run (%s); metrics.jsonl has all", self.name, reason)
            # a tracker that stays open would disturb the next run of this process
            with suppress(Exception):
                self.close(False)

    def open(self, run: "PrototypeStrategy") -> None:
        """Start tracking, with the run's settings."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a round."""

    def close(self, completed: bool) -> None:
        """Stop tracking: the run was completed or interrupted."""


class TensorBoard(Tracker):
    """Event files in the run's folder."""

    name = "TensorBoard"

    def open(self, run: "PrototypeStrategy") -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard drops the rounds that a resumed run repeats
        next_round = len(run.folder.lines(with_clients=False))
        self._writer: Any = SummaryWriter(str(run.folder.path / "tensorboard"), purge_step=next_round)
        self._writer.add_text("settings", str(run.folder.settings()))

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()

    def close(self, completed: bool) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of the run's name in the project `protosphere`; a resumed run continues it."""

    name = "Weights & Biases"

    def open(self, run: "PrototypeStrategy") -> None:
        import wandb

        # it would ask for a key on the terminal and wait
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise PermissionError("it has no key here; `wandb login` keeps one, and WANDB_MODE=offline needs none")
        self._tracked: Any = wandb.init(
            project=PROJECT,
            id=run.folder.name,
            name=run.folder.name,
            dir=str(run.folder.path),
            config=run.folder.settings(),
            resume="allow",
            # no information about the machine and its code is sent
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True),
        )

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        self._tracked.log(dict(values), step=round_number)

    def close(self, completed: bool) -> None:
        self._tracked.finish(exit_code=0 if completed else 1)


class MLflow(Tracker):
    """A run of the run's name in the experiment `protosphere`."""

    name = "MLflow"

    def open(self, run: "PrototypeStrategy") -> None:
        import mlflow

        self._mlflow: Any = mlflow
        if isinstance(run.settings.mlflow, str):
            mlflow.set_tracking_uri(run.settings.mlflow)
        mlflow.set_experiment(PROJECT)
        mlflow.start_run(run_name=run.folder.name)
        mlflow.log_params({name: str(value) for name, value in run.folder.settings().items()})

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=round_number)

    def close(self, completed: bool) -> None:
        self._mlflow.end_run("FINISHED" if completed else "FAILED")


TRACKERS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def trackers_of(settings: Settings) -> list[Tracker]:
    """The trackers that the settings ask for."""
    return [tracker() for name, tracker in TRACKERS.items() if getattr(settings, name)]


def refuse_missing_packages(settings: Settings) -> None:
    """Refuse a tracker whose package is not installed, before the run has a folder.

    Raises:
        SettingError: names the tracker and the extra to install.
    """
    for name, tracker in TRACKERS.items():
        if not getattr(settings, name):
            continue
        spec = importlib.util.find_spec(name)
        # these programs store files in folders of the same names, which look like packages without an origin
        if spec is None or spec.origin is None:
            raise SettingError(
                f"setting `{name}` is {shown(getattr(settings, name))}, but {tracker.name}'s package cannot be "
                f"imported here; pip install 'protosphere[{name}]', or remove the setting."
            )
