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
from protosphere.progress import Display, line_printer
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
    """Train clients together in this process, as `protosphere run` does, and give what came out. Of several threads
    each waits until the run before is done.

    >>> import protosphere
    >>> run = protosphere.run("protonorm", "spiral", clients=4, rounds=3, models="tiny_perceptron", spiral_points=50,
    ...                       quiet=True)
    >>> run.summary["rounds"]
    3

    A setting is given by its name in docs/settings.md, with `_` for `-`; one of a method's own with `__` for the dot.
    In a mapping it may keep its name:

    >>> again = protosphere.run("protonorm", "spiral", clients=4, rounds=1, models="tiny_perceptron",
    ...                         spiral_points=50, protonorm__gamma=5, settings={"protonorm.alignment": "thomson"},
    ...                         quiet=True)
    >>> again.settings["protonorm.gamma"], again.settings["protonorm.alignment"]
    (5, 'thomson')

    Your own arrays are a data set; they are kept in PROTOSPHERE_HOME, in a file called by their content:

    >>> x = np.random.default_rng(0).normal(size=(120, 5))
    >>> run = protosphere.run("local", (x, x[:, 0] > 0), clients=2, rounds=1, models="tiny_perceptron",
    ...                       quiet=True)
    >>> run.client(0).input_shape
    (5,)

    Models are names, or classes, functions and torch modules of your own. A class or function is called with those of
    the keywords `input_shape`, `num_classes` and `feature_dim` that it has, and gives a torch module, whose output is
    brought to `feature-dim` values and gets a classifier; of a module that is given itself every client gets a copy:

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

    Objects are of this process. Where clients have processes of their own (`workers`, `compare`, a run over Flower or
    Ray), name a file, as in `models="./mine.py:Net"`. Only the process that made a run of objects can resume it.

    `on_round` can end the run:

    >>> def twice(figures):
    ...     return figures["round"] < 2
    >>> run = protosphere.run("local", "spiral", clients=2, rounds=9, models="tiny_perceptron", spiral_points=50,
    ...                       on_round=twice, quiet=True)
    >>> run.summary["stopped"], len(run.rounds)
    ('on-round', 3)

    Args:
        strategy: the method: a name, `./file.py`, or `package.module:NAME`; "" for the setting's default. Or a
            `Method` of protosphere.strategies.contract; or a subclass of its `ServerHalf` or `Objective`, which takes
            the other half from FedProto.
        dataset: a name, a hub id, or a path; a list of them are domains of one task, of tables sites. Or arrays:
            (x, y), (x, y, x_test, y_test), or a mapping of these names with `classes`, `axes` and further columns
            (docs/data.md). Or a torch Dataset with a length, or (training, test) of them; each item is read once.
        models: names with commas, a class, a function, a torch module, or a list of these, given to clients in turn; ""
            for what fits the data.
        clients: how many are simulated; None for the setting `clients`, or 10.
        workers: processes that clients share; 1 is this one. With more, a script needs `if __name__ == "__main__":`.
        preset: settings of a paper's experiment, by the name of a preset.
        resume: go on with a run: its folder, its name, or `latest`. It keeps its settings, but may get more `rounds`.
        trust: with `resume`: whether code that lies in the folder may be run.
        on_round: called after every round with its number, and figures by the names of the columns of `Run.rounds`; and
            as round 0 with those of the untrained models. Returning False ends the run.
        quiet: print no line of the run, and no warning either.
        settings: more settings, by their names.
        more: settings as keywords, above those.

    Returns:
        The run. If it is interrupted or fails, `load` gives what there is of it.

    Raises:
        SettingError: a setting that cannot be used, before anything starts.
        DataError: no such data, or they cannot be read.
        ModelError: no such model, or it does not fit the data.
        RosterError: the clients do not fit together.
        RunError: the run cannot go on; its last finished round can be resumed.
    """
    # pandas, without which the command `run` comes to its first round
    from protosphere.results import Run

    chosen_settings = settings_of(settings, more)
    named = {"strategy": strategy, "dataset": data_of(dataset), "models": models}
    chosen_settings |= settings_of(None, {name: value for name, value in named.items() if _is_given(value)})
    chosen_settings = with_names(chosen_settings)
    clients = plain(clients)
    refuse_workers(workers)
    _refuse_arguments(clients, on_round)
    display = Display(line_printer(quiet), moves=False)
    with _ONE_AT_A_TIME:
        run_plan = plan(preset=preset, resume=os.fspath(resume), clients=clients, trust=trust, more=chosen_settings)
        try:
            return Run(carry_out(run_plan, display, workers=workers, on_round=on_round))
        except BaseException as error:
            if display.folder is not None:
                error.add_note(f'what there is of the run: protosphere.load("{display.folder}")')
            raise


def carry_out(
    run_plan: Plan,
    display: Display,
    *,
    workers: int = 1,
    on_round: Callable[[Mapping[str, Any]], object] | None = None,
) -> Path:
    """Run a plan in this process and its workers, for `run` and for the command of that name.

    Of a run that is interrupted a report is left, and the state `stopped`.

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
        display.line(note)
    display.stage("starting the clients")

    try:
        return run_in_process(
            config,
            clients=run_plan.clients,
            workers=workers,
            show=display.line,
            opened=display.opened,
            on_round=on_line,
        )
    except KeyboardInterrupt:
        if display.folder is not None:
            report_stopped(display.folder)
        raise


def _call_with_figures(on_round: Callable[[Mapping[str, Any]], object], rule: str, line: Mapping[str, Any]) -> object:
    """Hand a line's figures to a function, which may return False to end the run."""
    from protosphere.reports.frames import of_line

    return on_round(of_line(line, rule))


def _is_given(value: object) -> bool:
    # of a module or a class nobody asks whether it is true
    return value is not None and not (isinstance(value, str | list | tuple) and not value)


def refuse_workers(workers: int) -> None:
    """Raise SettingError where a run cannot have so many."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise SettingError(f"workers is {shown(workers)}, but a run needs at least 1.")


def _refuse_arguments(clients: object, on_round: object) -> None:
    if clients is not None and (isinstance(clients, bool) or not isinstance(clients, int) or clients < 1):
        raise SettingError(f"clients is {shown(clients)}, but a run needs a whole number of them, at least 1.")
    if on_round is not None and not callable(on_round):
        raise SettingError(f"on_round is {shown(on_round)}, but it is called after every round: give it a function.")
