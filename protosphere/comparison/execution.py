"""Runs the trials of a comparison, several at a time. `perform` runs one in the process that calls it: a process of
this machine, or a task of a Ray cluster."""

import multiprocessing
import os
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.trials import Trial, not_default, toml
from protosphere.core.errors import SettingError
from protosphere.core.home import discard_stores
from protosphere.core.text import duration
from protosphere.launch.grid import end_with_parent, run_in_process
from protosphere.launch.processes import import_path, interruptible
from protosphere.launch.ray_cluster import Node, count_tasks, join
from protosphere.server_app.status import USER_ERRORS

OUTPUT = "output.log"
SETTINGS = "settings.toml"
GPUS = "CUDA_VISIBLE_DEVICES"
LOOK = 0.2  # seconds after which we look again
PATIENCE = 30.0  # seconds that trials in flight have to end
# what a run would choose by its data where nobody says it, and what a trial has chosen, or was given, already
CHOSEN = ("clients", "partition", "models")


@dataclass(frozen=True)
class Order:
    """A trial to run, as a process or a node gets it.

    Attributes:
        place: the trial's folder, which is there.
        workers: processes that the run's clients share.
    """

    settings: Mapping[str, Any]
    clients: int
    place: str
    workers: int = 1
    keep_models: bool = False


def perform(order: Order) -> str:
    """Run a trial in this process.

    Returns:
        Why it failed, in a sentence; empty when it did not.
    """
    if not Path(order.place).is_dir():
        return (
            f"the comparison's folder {order.place} was not found on {socket.gethostname()}; give --results a "
            "folder on a file system that all nodes of the Ray cluster share."
        )
    with (Path(order.place) / OUTPUT).open("a", encoding="utf-8") as output:

        def say(line: str) -> None:
            output.write(line + "\n")
            output.flush()

        say(f"on {socket.gethostname()}, process {os.getpid()}")
        folders: list[Path] = []
        reason = ""
        config = {**order.settings, "results-dir": order.place}
        try:
            run_in_process(config, clients=order.clients, workers=order.workers, show=say, opened=folders.append)
        except USER_ERRORS as error:
            reason = str(error)
            say(f"error: {error}")
        except Exception as error:
            reason = f"an error of the program on {socket.gethostname()}: {type(error).__name__}: {error}"
            say(traceback.format_exc())
    if not order.keep_models:
        for folder in folders:
            discard_stores(folder.name)
    return reason


# --- where trials run --------------------------------------------------------------------------------------------


class Executor(Protocol):
    """What runs orders: `jobs` of them at a time."""

    jobs: int

    def ready(self) -> AbstractContextManager[None]:
        """While inside, orders can be started."""

    def start(self, order: Order, place: int) -> Any:
        """Begin an order in one of the places that there are, counted from 0."""

    def failure(self, run: Any) -> str | None:
        """Why a run failed; empty where it did not, None while it is on."""

    def stop(self, runs: Sequence[Any]) -> None:
        """End what is in flight."""


def environments(trials: Sequence[Trial], jobs: int | None, workers: int = 1) -> list[dict[str, str]]:
    """What each place for a trial on this machine has in its environment; there are as many as run at a time.

    Without `jobs` it is a trial for each GPU where trials may train on one, else as many as the cores hold, of which a
    trial takes the setting `threads` for each of its workers.

    Raises:
        SettingError: no trial could run.
    """
    _refuse_none(jobs)
    threads, on_gpu = _needs_of(trials)
    gpus = _gpus() if on_gpu else []
    most = len(gpus) or max(1, (os.cpu_count() or 1) // (threads * workers))
    number = min(jobs or most, len(trials) or 1)
    return [{GPUS: gpus[place % len(gpus)]} if gpus else {} for place in range(number)]


def _refuse_none(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise SettingError(f"the number of jobs is {jobs}, but at least one trial must run at a time.")


def _needs_of(trials: Sequence[Trial]) -> tuple[int, bool]:
    """The cores that a trial takes in one process, and whether any may train on a GPU."""
    threads = max((int(trial.settings["threads"]) for trial in trials), default=1)
    return threads, any(trial.settings["device"] != "cpu" for trial in trials)


def _gpus() -> list[str]:
    """The CUDA devices that this process may use, as the environment names them."""
    from torch.cuda import device_count

    named = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return named[: device_count()] or [str(index) for index in range(device_count())]


class Processes:
    """Processes of this machine, a new one for each trial, none of which outlives the one that started it.

    On Linux each is forked from a server of multiprocessing's that has loaded what a run needs.
    """

    def __init__(self, places: Sequence[Mapping[str, str]]):
        self.jobs = len(places)
        self._places = places
        is_linux = sys.platform == "linux"
        self._context: Any = multiprocessing.get_context("forkserver" if is_linux else "spawn")
        if is_linux:
            self._context.set_forkserver_preload(["protosphere.comparison.preloaded"])

    def ready(self) -> AbstractContextManager[None]:
        """While inside, orders can be started."""
        return nullcontext()

    def start(self, order: Order, place: int) -> Any:
        """Begin an order in a process of its own."""
        receiver, sender = self._context.Pipe(duplex=False)
        environment = os.environ | self._places[place]
        process = self._context.Process(target=_perform_apart, args=(order, environment, sender))
        with _without_main_module():
            process.start()
        sender.close()
        return process, receiver, order

    def failure(self, run: Any) -> str | None:
        """Why a run failed: as it says itself, or, where its process broke, by its exit code and its last line."""
        process, receiver, order = run
        # before the pipe is looked at, into which it may write and then end in this very moment
        is_alive = process.is_alive()
        # of a process that lives, too: it waits until a long reason is read
        with suppress(EOFError):
            if receiver.poll():
                return str(receiver.recv())
        if is_alive:
            return None
        output = Path(order.place) / OUTPUT
        lines = output.read_text("utf-8", errors="replace").split("\n") if output.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "without a word")
        return f"it ended with exit code {process.exitcode}: {last}"

    def stop(self, runs: Sequence[Any]) -> None:
        """End what is in flight."""
        for process, *_ in runs:
            process.kill()
        for process, *_ in runs:
            process.join(PATIENCE)


def _perform_apart(order: Order, environment: Mapping[str, str], sender: Any) -> None:
    """`perform` in a process of its own."""
    # a terminal's Ctrl-C is for the comparison
    if hasattr(os, "setsid"):
        os.setsid()
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(Path(order.place) / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    sender.send(perform(order))


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Multiprocessing imports the main module into each process: a user's script would compare anew there."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Tasks:
    """Tasks of a Ray cluster that this process has joined.

    The nodes share nothing but the folder of the comparison: data and clients' models are in each node's own
    PROTOSPHERE_HOME, and the models go when the trial has ended.
    """

    def __init__(self, trials: Sequence[Trial], address: str, nodes: Sequence[Node], jobs: int | None):
        _refuse_none(jobs)
        threads, on_gpu = _needs_of(trials)
        gpus = float(on_gpu and any(node.gpus >= 1 for node in nodes))
        most = count_tasks(nodes, threads, gpus)
        self.jobs = min(jobs or most, most, len(trials) or 1)
        self._resources = {"num_cpus": threads, "num_gpus": gpus}
        self._address = address
        self._ray: Any = None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """While inside, this process is one of the cluster, which ends all tasks of a process that leaves it."""
        self._ray = join(self._address, runtime_env={"env_vars": {"PYTHONPATH": import_path()}})
        try:
            yield
        finally:
            self._ray.shutdown()

    def start(self, order: Order, place: int) -> Any:
        """Begin an order as soon as a node has room, whichever of the places it has here."""
        # one that died is said, and not begun anew in a folder that holds half a run; no trial sees what another kept
        # in its process
        task = self._ray.remote(**self._resources, max_retries=0, max_calls=1)(perform)
        return task.remote(order)

    def failure(self, run: Any) -> str | None:
        """Why a task failed; empty where it did not, None while it is on."""
        if not self._ray.wait([run], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(run))
        except self._ray.exceptions.RayTaskError as error:
            return f"its task broke off: {str(error).strip().rpartition(chr(10))[2]}"
        except self._ray.exceptions.RayError as error:
            return f"its task died ({type(error).__name__}): its process was killed, or its node has gone."

    def stop(self, runs: Sequence[Any]) -> None:
        """End what is in flight."""
        for run in runs:
            self._ray.cancel(run, force=True)
        if runs:
            self._ray.wait(list(runs), num_returns=len(runs), timeout=PATIENCE)


# --- all trials --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A trial that ended; `reason` says in a sentence why it failed, and is empty when it did not."""

    trial: Trial
    seconds: float
    reason: str = ""


def run_trials(
    folder: ComparisonFolder,
    trials: Sequence[Trial],
    executor: Executor,
    say: Callable[[str], None],
    *,
    workers: int = 1,
    reports: bool = False,
    keep_models: bool = False,
) -> list[Finished]:
    """Run the trials that have no finished run, seed by seed; what a trial cut short left is discarded first.

    Args:
        say: takes a line for each trial that ends, with an estimate of the rest.
        workers, reports, keep_models: of each run.

    Returns:
        How each of them ended. Those that failed do not stop the others, and keep what they left.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came in; all was stopped and trials in flight were discarded.
    """
    # seed by seed: every row and method has figures early
    seeds = list(dict.fromkeys(trial.seed for trial in trials))
    waiting = [
        trial for trial in sorted(trials, key=lambda trial: seeds.index(trial.seed)) if folder.run_of(trial) is None
    ]
    before, began = len(trials) - len(waiting), time.monotonic()
    ended: list[Finished] = []
    jobs: dict[int, _Job] = {}  # by place
    with interruptible() as deafen, executor.ready():
        try:
            while waiting or jobs:
                for place in range(executor.jobs):
                    if waiting and place not in jobs:
                        trial = waiting.pop(0)
                        prepare(folder, trial)
                        settings = {**trial.settings, "report": reports}
                        order = Order(settings, trial.clients, str(folder.of(trial)), workers, keep_models)
                        jobs[place] = _Job(trial, time.monotonic(), executor.start(order, place))
                for place, job in list(jobs.items()):
                    failure = executor.failure(job.run)
                    if failure is not None:
                        del jobs[place]
                        if not failure and folder.run_of(job.trial) is None:
                            failure = (
                                f"it ended, but {folder.of(job.trial)} holds no finished run; is that folder shared by "
                                "all nodes?"
                            )
                        ended.append(Finished(job.trial, time.monotonic() - job.began, failure))
                        seconds = (len(waiting) + len(jobs)) * (time.monotonic() - began) / len(ended)
                        say(f"{before + len(ended)}/{len(trials)} {_describe(ended[-1])} | {duration(seconds)} left")
                        if not keep_models:
                            # also of a run whose process was killed
                            folder.discard_models(job.trial)
                if jobs:
                    time.sleep(LOOK)
        finally:
            deafen()
            executor.stop([job.run for job in jobs.values()])
            for job in jobs.values():
                # it may have come to its end in this very moment
                if folder.run_of(job.trial) is None:
                    folder.discard(job.trial)
    return ended


def _describe(finished: Finished) -> str:
    how = f"failed: {finished.reason}" if finished.reason else f"done in {duration(finished.seconds)}"
    return f"{finished.trial.title}: {how}"


@dataclass(frozen=True)
class _Job:
    """A trial in flight, when it began, and the process or the task that is its run."""

    trial: Trial
    began: float
    run: Any


def prepare(folder: ComparisonFolder, trial: Trial) -> None:
    """Empty the trial's folder, but for the settings of its run."""
    folder.discard(trial)
    folder.of(trial).mkdir(parents=True)
    # a default, too, where somebody asked for it
    settings = not_default(trial.settings) | {name: trial.settings[name] for name in CHOSEN}
    (folder.of(trial) / SETTINGS).write_text(toml(settings), "utf-8")
