"""Runs the trials of a comparison, several at a time, each in a process of this machine or as a task of a Ray
cluster."""

import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.trials import Trial
from protosphere.core.errors import SettingError
from protosphere.core.home import discard_stores
from protosphere.core.text import duration, one_line
from protosphere.launch.grid import run_in_process
from protosphere.launch.processes import import_path, interruptible
from protosphere.launch.ray_cluster import Node, count_tasks, join
from protosphere.launch.workers import end_with_parent, forking_context, without_main_module
from protosphere.server_app.status import USER_ERRORS

OUTPUT = "output.log"
GPUS = "CUDA_VISIBLE_DEVICES"
LOOK = 0.2  # seconds between two looks at the trials in flight
PATIENCE = 30.0  # seconds that trials in flight have to end
LONGEST_REASON = 2000  # characters, which a pipe holds until it is read


@dataclass(frozen=True)
class Order:
    """A trial to run.

    Attributes:
        place: the trial's folder.
        workers: number of processes that share the run's clients.
    """

    settings: Mapping[str, Any]
    place: str
    workers: int = 1
    keep_models: bool = False


def perform(order: Order) -> str:
    """Run a trial in this process.

    Returns:
        Why it failed; "" if it did not.
    """
    folder = Path(order.place)
    if not folder.is_dir():
        return (
            f"the comparison's folder {folder} was not found on {socket.gethostname()}; give --results a folder on a "
            "file system that all nodes of the Ray cluster share."
        )
    runs: list[Path] = []
    reason = ""
    with (folder / OUTPUT).open("a", encoding="utf-8") as output:

        def show(line: str) -> None:
            print(line, file=output, flush=True)

        show(f"on {socket.gethostname()}, process {os.getpid()}")
        try:
            run_in_process(
                {**order.settings, "results-dir": order.place},
                clients=int(order.settings["clients"]),
                workers=order.workers,
                show=show,
                opened=runs.append,
            )
        except USER_ERRORS as error:
            reason = str(error)
            show(f"error: {error}")
        except Exception as error:
            reason = f"an error of the program on {socket.gethostname()}: {type(error).__name__}: {error}"
            show(traceback.format_exc())
    if not order.keep_models:
        for run in runs:
            discard_stores(run.name)
    return one_line(reason, LONGEST_REASON)


# --- where trials run --------------------------------------------------------------------------------------------


def environments(trials: Sequence[Trial], jobs: int | None, workers: int = 1) -> list[dict[str, str]]:
    """The environment variables of each place for a trial on this machine.

    By default there is a place for each GPU that trials may use, or else as many as fit on the cores, of which a trial
    takes the setting `threads` for each of its workers.

    Raises:
        SettingError: `jobs` is below 1.
    """
    _check_jobs(jobs)
    threads, on_gpu = _needs_of(trials)
    gpus = _gpus() if on_gpu else []
    most = len(gpus) or max(1, (os.cpu_count() or 1) // (threads * workers))
    number = min(jobs or most, len(trials) or 1)
    return [{GPUS: gpus[place % len(gpus)]} if gpus else {} for place in range(number)]


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise SettingError(f"the number of jobs is {jobs}, but at least one trial must run at a time.")


def _needs_of(trials: Sequence[Trial]) -> tuple[int, bool]:
    """The number of cores of a trial, and whether any trial may train on a GPU."""
    threads = max((int(trial.settings["threads"]) for trial in trials), default=1)
    return threads, any(trial.settings["device"] != "cpu" for trial in trials)


def _gpus() -> list[str]:
    """The names of the CUDA devices that this process may use."""
    from torch.cuda import device_count

    visible = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return visible[: device_count()] or [str(index) for index in range(device_count())]


class Processes:
    """Processes of this machine, a new one for each trial; all end with the process that started them."""

    def __init__(self, places: Sequence[Mapping[str, str]]):
        self.jobs = len(places)
        self._places = places

    @cached_property
    def _context(self) -> Any:
        return forking_context(__name__)

    def start(self, order: Order, place: int) -> Any:
        """Start an order in a process of its own."""
        receiver, sender = self._context.Pipe(duplex=False)
        environment = os.environ | self._places[place]
        process = self._context.Process(target=_perform_in_child, args=(order, environment, sender))
        with without_main_module():
            process.start()
        sender.close()
        return process, receiver, order

    def failure(self, run: Any) -> str | None:
        """Why a run failed; of a process that was killed, its exit code and its last line of output."""
        process, receiver, order = run
        # before the pipe is read: a process that ends in between has sent its answer
        is_alive = process.is_alive()
        with suppress(EOFError):
            if receiver.poll():
                return str(receiver.recv())
        if is_alive:
            return None
        output = Path(order.place) / OUTPUT
        lines = output.read_text("utf-8", errors="replace").split("\n") if output.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        return f"it ended with exit code {process.exitcode}: {last}"

    def stop(self, runs: Sequence[Any]) -> None:
        """Kill runs."""
        for process, *_ in runs:
            process.kill()
        for process, *_ in runs:
            process.join(PATIENCE)


def _perform_in_child(order: Order, environment: Mapping[str, str], sender: Any) -> None:
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


class Tasks:
    """Tasks of a Ray cluster that this process joins. The nodes share only the folder of the comparison."""

    def __init__(self, trials: Sequence[Trial], address: str, nodes: Sequence[Node], jobs: int | None):
        _check_jobs(jobs)
        threads, on_gpu = _needs_of(trials)
        gpus = float(on_gpu and any(node.gpus >= 1 for node in nodes))
        most = count_tasks(nodes, threads, gpus)
        self.jobs = min(jobs or most, most, len(trials) or 1)
        self._resources = {"num_cpus": threads, "num_gpus": gpus}
        self._address = address
        self._ray: Any = None

    def start(self, order: Order, place: int) -> Any:
        """Start an order as soon as a node has room."""
        if self._ray is None:
            self._ray = join(self._address, runtime_env={"env_vars": {"PYTHONPATH": import_path()}})
        # no retry in a folder that holds half a run, and a new process for each task
        task = self._ray.remote(**self._resources, max_retries=0, max_calls=1)(perform)
        return task.remote(order)

    def failure(self, run: Any) -> str | None:
        """Why a task failed: "" if it did not, None while it is running."""
        if not self._ray.wait([run], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(run))
        except self._ray.exceptions.RayTaskError as error:
            return f"its task failed: {str(error).strip().rpartition(chr(10))[2]}"
        except self._ray.exceptions.RayError as error:
            return f"its task died ({type(error).__name__}): its process was killed, or its node has gone."

    def stop(self, runs: Sequence[Any]) -> None:
        """Cancel tasks and leave the cluster, which ends what is left of them."""
        if self._ray is None:
            return
        for run in runs:
            self._ray.cancel(run, force=True)
        if runs:
            self._ray.wait(list(runs), num_returns=len(runs), timeout=PATIENCE)
        self._ray.shutdown()


Executor = Processes | Tasks

# --- all trials --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A trial that ended, and why it failed ("" if it did not)."""

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
    """Run the trials that are not finished, seed by seed. A trial that fails does not stop the others.

    Args:
        say: called with a line for each trial that ends.
        workers, reports, keep_models: options of each run.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP arrived; trials in flight were stopped and discarded.
    """
    seeds = list(dict.fromkeys(trial.seed for trial in trials))
    waiting = [trial for trial in trials if folder.run_of(trial) is None]
    waiting.sort(key=lambda trial: seeds.index(trial.seed))
    before, began = len(trials) - len(waiting), time.monotonic()
    ended: list[Finished] = []
    in_flight: dict[int, tuple[Trial, float, Any]] = {}  # place -> trial, when it began, handle of its run
    with interruptible() as deafen:
        try:
            while waiting or in_flight:
                for place in range(executor.jobs):
                    if waiting and place not in in_flight:
                        trial = waiting.pop(0)
                        folder.discard(trial)
                        folder.of(trial).mkdir(parents=True)
                        settings = {**trial.settings, "report": reports}
                        order = Order(settings, str(folder.of(trial)), workers, keep_models)
                        in_flight[place] = (trial, time.monotonic(), executor.start(order, place))
                for place, (trial, start, run) in list(in_flight.items()):
                    failure = executor.failure(run)
                    if failure is None:
                        continue
                    del in_flight[place]
                    if not failure and folder.run_of(trial) is None:
                        failure = f"{folder.of(trial)} holds no finished run; is it shared by all nodes?"
                    ended.append(Finished(trial, time.monotonic() - start, failure))
                    seconds_left = (len(waiting) + len(in_flight)) * (time.monotonic() - began) / len(ended)
                    outcome = f"failed: {failure}" if failure else f"done in {duration(ended[-1].seconds)}"
                    say(f"{before + len(ended)}/{len(trials)} {trial.title}: {outcome} | {duration(seconds_left)} left")
                    if not keep_models:
                        # a killed process leaves its models
                        folder.discard_models(trial)
                if in_flight:
                    time.sleep(LOOK)
        finally:
            deafen()
            executor.stop([run for _, _, run in in_flight.values()])
            for trial, _, _ in in_flight.values():
                if folder.run_of(trial) is None:
                    folder.discard(trial)
    return ended
