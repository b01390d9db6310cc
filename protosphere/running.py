"""A run in this process."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.arrays import data_of
from protosphere.core.devices import device_of
from protosphere.core.errors import SettingError
from protosphere.core.objects import refuse_objects
from protosphere.core.settings import shown
from protosphere.launch.flower import report_stopped
from protosphere.launch.grid import run_in_process
from protosphere.names import Value, plain, settings_of
from protosphere.own_objects import Model, with_names
from protosphere.plans.run_config import Plan, plan
from protosphere.progress import RunLines, line_printer
from protosphere.strategies import read_settings

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from protosphere.results import Run
    from protosphere.strategies.contract import Method, Objective, ServerHalf

# models are drawn from torch's global generator; a run may start another from on_round
_ONE_AT_A_TIME = threading.RLock()


def run(
    strategy: "str | Method | type[ServerHalf] | type[Objective]" = "",
    dataset: "Value | Mapping[str, Any] | Sequence[Any] | Dataset[Any]" = "",
    *,
    models: "str | Model | Sequence[str | Model]" = "",
    clients: int | None = None,
    workers: int = 1,
    preset: str = "",
    resume: str | os.PathLike[str] = "",
    on_round: Callable[[Mapping[str, Any]], object] | None = None,
    trust: bool = False,
    quiet: bool = False,
    settings: Mapping[str, Value] | None = None,
    **more: Value,
) -> "Run":
    """Train clients together in this process, as `protosphere run` does, and return the run. If several threads call
    it, the runs are executed one after the other.

    >>> import protosphere
    >>> run = protosphere.run("protonorm", "spiral", clients=4, rounds=3, models="tiny_perceptron", spiral_points=50,
    ...                       quiet=True)
    >>> run.summary["rounds"]
    3

    Pass a setting by its name in docs/settings.md, with `_` for `-`; for a method's own setting, write `__` for the
    dot. In a mapping, use the name itself:

    >>> again = protosphere.run("protonorm", "spiral", clients=4, rounds=1, models="tiny_perceptron",
    ...                         spiral_points=50, protonorm__gamma=5, settings={"protonorm.alignment": "thomson"},
    ...                         quiet=True)
    >>> again.settings["protonorm.gamma"], again.settings["protonorm.alignment"]
    (5, 'thomson')

    You can pass arrays as the data set; they are stored in PROTOSPHERE_HOME, in a file named after their content:

    >>> x = np.random.default_rng(0).normal(size=(120, 5))
    >>> run = protosphere.run("local", (x, x[:, 0] > 0), clients=2, rounds=1, models="tiny_perceptron",
    ...                       quiet=True)
    >>> run.client(0).input_shape
    (5,)

    Models are names, or your own classes, functions and torch modules. A class or function is called with those of the
    keywords `input_shape`, `num_classes` and `feature_dim` that it accepts, and returns a torch module, whose output is
    projected to `feature-dim` values and gets a classifier. If you pass a module, every client gets a copy of it:

    >>> class Net(torch.nn.Module):
    ...     def __init__(self, input_shape, feature_dim):
    ...         super().__init__()
    ...         self.layers = torch.nn.Sequential(torch.nn.Linear(*input_shape, feature_dim), torch.nn.ReLU())
    ...     def forward(self, x):
    ...         return self.layers(x)
    >>> run = protosphere.run("local", (x, x[:, 0] > 0), clients=2, rounds=1, models=[Net, "tiny_perceptron"],
    ...                       quiet=True)
    >>> [entry.rpartition("_")[0] for entry in (run.client(0).model, run.client(1).model)]
    ['object:Net', 'tiny']

    Objects exist in this process only. If clients have their own processes (`workers`, `compare`, a run over Flower or
    Ray), name a file instead, as in `models="./mine.py:Net"`. A run with objects can be resumed only in the process
    that started it.

    `on_round` can end the run:

    >>> def twice(figures):
    ...     return figures["round"] < 2
    >>> run = protosphere.run("local", "spiral", clients=2, rounds=9, models="tiny_perceptron", spiral_points=50,
    ...                       on_round=twice, quiet=True)
    >>> run.summary["stopped"], len(run.rounds)
    ('on-round', 3)

    Args:
        strategy: the method: a name, `./file.py`, or `package.module:NAME`; "" for the setting's default. Or a
            `Method`; or a subclass of `ServerHalf` or `Objective`, whose other half is FedProto's.
        dataset: a name, a hub id, or a path; a list of them gives domains of one task, or sites for tables. Or arrays:
            (x, y), (x, y, x_test, y_test), or a mapping of these names with `classes`, `axes` and further columns
            (docs/data.md). Or a torch Dataset with a length, or (training, test) of them; each item is read once.
        models: names separated by commas, a class, a function, a torch module, or a list of these, assigned to clients
            in turn; "" for models that fit the data.
        clients: the number of simulated clients; None for the setting `clients`, or 10.
        workers: the number of processes for clients; 1 is this process. With more, a script needs
            `if __name__ == "__main__":`.
        preset: the name of a preset, which has the settings of a paper's experiment.
        resume: continue a run: its folder, its name, or `latest`. It keeps its settings, but may get more `rounds`.
        trust: with `resume`: whether code in the folder may be run.
        on_round: called after every round, and for round 0, with a dict of the round's number and its values by the
            column names of `Run.rounds`. Returning False ends the run.
        quiet: print neither the run's lines nor warnings.
        settings: further settings, by their names.
        more: settings as keywords, which take precedence.

    Returns:
        The run. If it is interrupted or fails, `load` returns its finished rounds.

    Raises:
        SettingError: a setting cannot be used; raised before anything starts.
        DataError: the data do not exist or cannot be read.
        ModelError: the model does not exist or does not fit the data.
        RosterError: the clients do not fit together.
        RunError: the run cannot continue; it can be resumed from its last finished round.
    """
    # this loads pandas, which the command `run` does not need before its first round
    from protosphere.results import Run

    chosen_settings = settings_of(settings, more)
    named = {"strategy": strategy, "dataset": data_of(dataset), "models": models}
    chosen_settings |= settings_of(None, {name: value for name, value in named.items() if _is_given(value)})
    chosen_settings = with_names(chosen_settings)
    clients = plain(clients)
    refuse_workers(workers)
    _refuse_arguments(clients, on_round)
    lines = RunLines(line_printer(quiet))
    with _ONE_AT_A_TIME:
        run_plan = plan(preset=preset, resume=os.fspath(resume), clients=clients, trust=trust, more=chosen_settings)
        try:
            return Run(carry_out(run_plan, lines, workers=workers, on_round=on_round))
        except BaseException as error:
            if lines.folder is not None:
                error.add_note(f'what there is of the run: protosphere.load("{lines.folder}")')
            raise


def carry_out(
    run_plan: Plan,
    lines: RunLines,
    *,
    workers: int = 1,
    on_round: Callable[[Mapping[str, Any]], object] | None = None,
) -> Path:
    """Run a plan in this process and its workers, for the function `run` and the command of that name.

    An interrupted run leaves a report and the state `stopped`.

    Returns:
        The run's folder.

    Raises:
        SettingError: it cannot run here. RosterError, RunError: it cannot go on. KeyboardInterrupt: it was interrupted.
    """
    config = run_plan.run_config
    if workers > 1:
        refuse_objects(config, f"{workers} workers are processes of their own")
    device_of(str(config["device"]), "setting `device` is")
    on_line = None
    if on_round is not None:
        on_line = partial(_call_with_figures, on_round, read_settings(config).inference)
    for note in run_plan.notes:
        lines.line(note)

    try:
        return run_in_process(
            config,
            clients=run_plan.clients,
            workers=workers,
            show=lines.line,
            opened=lines.opened,
            on_round=on_line,
        )
    except KeyboardInterrupt:
        if lines.folder is not None:
            report_stopped(lines.folder)
        raise


def _call_with_figures(on_round: Callable[[Mapping[str, Any]], object], rule: str, line: Mapping[str, Any]) -> object:
    """Pass a line's values to a function, which may return False to end the run."""
    from protosphere.reports.frames import of_line

    return on_round(of_line(line, rule))


def _is_given(value: object) -> bool:
    # the truth value of a module or class says nothing about whether it was given
    return value is not None and not (isinstance(value, str | list | tuple) and not value)


def refuse_workers(workers: int) -> None:
    """Raise SettingError if a run cannot have this number of workers."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise SettingError(f"workers is {shown(workers)}, but a run needs at least 1.")


def _refuse_arguments(clients: object, on_round: object) -> None:
    if clients is not None and (isinstance(clients, bool) or not isinstance(clients, int) or clients < 1):
        raise SettingError(f"clients is {shown(clients)}, but a run needs a whole number of them, at least 1.")
    if on_round is not None and not callable(on_round):
        raise SettingError(f"on_round is {shown(on_round)}, but it is called after every round: give it a function.")
