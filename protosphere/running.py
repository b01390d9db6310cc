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

    Arrays are stored in PROTOSPHERE_HOME, in a file named after their content (docs/data.md has examples).

    Models are names, or your own classes, functions and torch modules. A class or function is called with those of the
    keywords `input_shape`, `num_classes` and `feature_dim` that it accepts, and returns a torch module, whose output is
    projected to `feature-dim` values and gets a classifier (docs/models.md has examples). If you pass a module, every
    client gets a copy of it.

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
        workers: the number of processes for clients; 1 is this process.
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

    named = {"strategy": strategy, "dataset": data_of(dataset), "models": models}
    # the truth value of a module or class says nothing about whether it was given
    named = {name: value for name, value in named.items() if value is not None and not _is_empty(value)}
    all_settings = with_names(settings_of(settings, more) | settings_of(None, named))
    clients = plain(clients)
    refuse_number("workers", workers)
    if clients is not None:
        refuse_number("clients", clients)
    if on_round is not None and not callable(on_round):
        raise SettingError(f"on_round is {shown(on_round)}, but it is called after every round: give it a function.")
    folders: list[Path] = []
    with _ONE_AT_A_TIME:
        run_plan = plan(preset=preset, resume=os.fspath(resume), clients=clients, trust=trust, more=all_settings)
        try:
            return Run(carry_out(run_plan, line_printer(quiet), folders, workers=workers, on_round=on_round))
        except BaseException as error:
            folder = existing(folders)
            if folder is not None:
                error.add_note(f'what there is of the run: protosphere.load("{folder}")')
            raise


def carry_out(
    run_plan: Plan,
    show: Callable[[str], None],
    folders: list[Path],
    *,
    workers: int = 1,
    on_round: Callable[[Mapping[str, Any]], object] | None = None,
) -> Path:
    """Run a plan in this process and its workers, for the function `run` and the command of that name.

    An interrupted run leaves a report and the state `stopped`.

    Args:
        show: called with each line of the run.
        folders: gets the run's folder as soon as there is one.

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
        show(note)
    try:
        return run_in_process(
            config, clients=run_plan.clients, workers=workers, show=show, opened=folders.append, on_round=on_line
        )
    except KeyboardInterrupt:
        folder = existing(folders)
        if folder is not None:
            report_stopped(folder)
        raise


def existing(folders: list[Path]) -> Path | None:
    """The run's folder if it exists; a run without a finished round has removed it."""
    return folders[0] if folders and folders[0].is_dir() else None


def line_printer(quiet: bool) -> Callable[[str], None]:
    """The function that prints the lines of a run or comparison that is started from Python."""
    return (lambda line: None) if quiet else partial(print, flush=True)


def _call_with_figures(on_round: Callable[[Mapping[str, Any]], object], rule: str, line: Mapping[str, Any]) -> object:
    """Pass a line's values to a function, which may return False to end the run."""
    from protosphere.reports.frames import of_line

    return on_round(of_line(line, rule))


def _is_empty(value: object) -> bool:
    return isinstance(value, str | list | tuple) and not value


def refuse_number(name: str, value: object) -> None:
    """Raise SettingError unless the value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{name} is {shown(value)}, but it is a whole number, at least 1.")
