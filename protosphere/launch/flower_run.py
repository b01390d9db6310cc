"""One run over real Flower: a SuperLink from a neutral folder, `flwr run`, the wait, the true outcome, a clean stop.

`flwr run` alone exits 0 when a run fails, and its Ray workers import client code from wherever the SuperLink was
started.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from protosphere.core.errors import SettingError
from protosphere.core.flower import COMPLETED, is_silent, raised_words
from protosphere.core.home import results_root
from protosphere.core.settings import Scalar
from protosphere.launch.app_bundle import bare
from protosphere.launch.connection import Connection, FlowerError
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import Interrupted, interruptible
from protosphere.launch.superlink import SuperLink, describe_load
from protosphere.launch.unfinished_run import stopped
from protosphere.record.folder import append_log, find_flower_run
from protosphere.server_app.app import PREFIX, PREFIX_OF_ERRORS
from protosphere.strategies import packed

ROOT = Path(__file__).resolve().parents[2]
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
FINISHED = re.compile(rf"{re.escape(PREFIX)}round +\d+/\d+ \| ")  # a line of `console_line`
EXCEPTION = re.compile(r"[A-Za-z_.]*(Error|Exception)\b.*")
# Ray keeps Unix sockets up to 68 characters below this folder, and no system takes paths of more than 103 for them
LONGEST_FOLDER = 35
NO_REASON = "An error was encountered. Ending simulation"  # all that Flower says where its engine did not begin
NEWEST = 100  # folders of runs, among which one that has just begun is


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        ok: it was completed.
        folder: the run's folder; None when it came to none, or to one of another machine.
        message: one sentence on why it failed; empty when it did not.
        log: all that Flower, Ray and both apps said; None when a completed run has no folder to keep it.
        flower_run: the number that Flower knows the run by; empty where it did not take it.
        resumable: whether there is a checkpoint to go on from: in the folder, or, where that is another machine's, of a
            round that was heard to be finished.
    """

    ok: bool
    folder: Path | None = None
    message: str = ""
    log: Path | None = None
    flower_run: str = ""
    resumable: bool = False


class RunInterrupted(Interrupted):
    """A signal ended the run; all is stopped, and `outcome` says what is left of it."""

    def __init__(self, number: int, outcome: Outcome):
        super().__init__(number)
        self.outcome = outcome


def launch(
    run_config: Mapping[str, Scalar],
    *,
    clients: int,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    show: Callable[[str], None],
    verbose: bool = False,
    app: Path = ROOT,
    connection: str = "",
    ray: str = "",
    opened: Callable[[Path], None] = lambda folder: None,
) -> Outcome:
    """Run a Flower app, in simulation or on the nodes of a SuperLink, and wait for its end. Nothing that was started
    is left behind, not even when this process is killed.

    Args:
        run_config: settings by their full names, with absolute paths; what is missing takes the app's default.
        clients: simulated clients; our ServerApp waits for the exact number that the setting `clients` names.
        cpus_per_client: of these, the machine's cores divided by it run at a time.
        gpus_per_client: a share of a GPU; 0 keeps clients off it.
        show: called with each line that our ServerApp says, without its prefix, but why it failed, which the outcome
            tells; with `verbose`, with all lines.
        app: the folder of the app's pyproject.toml.
        connection: the name of a SuperLink's connection in Flower's configuration; empty for a simulation over one of
            our own. The three numbers above are the simulation's.
        ray: the address of the Ray cluster over which a simulation runs; empty for a Ray of our own. What its nodes
            hold is `cluster_at`'s to check.
        opened: told the run's folder as soon as there is one on this machine.

    Raises:
        SettingError: this machine lacks the CPUs or GPUs asked for.
        RunInterrupted: SIGINT, SIGTERM or SIGHUP came in; all was stopped first.
    """
    if not ray:
        check_resources(cpus_per_client, gpus_per_client)
    resources = f"client-resources-num-cpus={cpus_per_client} client-resources-num-gpus={float(gpus_per_client)}"
    federation = "" if connection else f"num-supernodes={clients} {resources}"
    scratch = _scratch()
    interruption: Interrupted | None = None
    # a folder of the SuperLink's machine: over a connection that may be another
    place = Path(str(run_config.get("resume", "")))
    results = results_root(str(run_config.get("results-dir", "")))
    search = _RunFolderSearch(place, results, opened)
    try:
        with (
            _Listener(scratch / "run.log", show, verbose) as listener,
            interruptible() as deafen,
            guarded(scratch) as tell,
        ):
            superlink = Connection(scratch, tell, connection) if connection else SuperLink(scratch, tell, ray)

            def hear(line: str) -> None:
                if listener.hear(line):
                    search.look(superlink.flower_run)

            try:
                _refuse_no_app(app)
                superlink.start()
                if superlink.notice:
                    show(f"warning: {superlink.notice}")
                superlink.run(bare(app, scratch / "app"), packed(run_config), hear, federation)
                outcome = _outcome(superlink, listener, search.look(superlink.flower_run))
            except Interrupted as signal:
                interruption = signal
                # the terminal itself may be what has gone
                with suppress(OSError):
                    show(f"{signal.name}: stopping Flower and all that it started")
                folder = search.look(superlink.flower_run)
                is_elsewhere = bool(connection) and folder is None
                message = f"stopped by {signal.name}." if is_elsewhere else stopped(signal.name, folder)
                outcome = Outcome(False, folder, message)
            except FlowerError as error:
                outcome = Outcome(False, search.look(superlink.flower_run), str(error))
            finally:
                deafen()
                stop_command = superlink.stop()
            message = outcome.message
            if stop_command:
                message = f"the run could not be stopped and may still be running: try `{stop_command}`."
            outcome = replace(
                outcome,
                message=message,
                log=_keep_log(scratch, outcome, results_root("") if connection else results),
                flower_run=superlink.flower_run,
                resumable=_resumable(outcome.folder, listener),
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if interruption:
        raise RunInterrupted(interruption.number, outcome)
    return outcome


def check_resources(cpus_per_client: int, gpus_per_client: float) -> None:
    """Refuse what this machine cannot give a client: Flower would start, and end without saying why.

    Raises:
        SettingError: one sentence with what was asked and what is there.
    """
    cpus = os.cpu_count() or 1
    if not 1 <= cpus_per_client <= cpus:
        raise SettingError(
            f"--cpus-per-client is {cpus_per_client}, but this machine has {cpus}; give a whole number from 1 to that."
        )
    if gpus_per_client == 0:
        return
    from torch.cuda import device_count

    gpus = device_count()
    if not 0 <= gpus_per_client <= gpus:
        allowed = f"give a number from 0 to {gpus}" if gpus else "leave it at 0 to train on the CPU"
        raise SettingError(
            f"--gpus-per-client is {gpus_per_client:g}, but this machine has {gpus} CUDA GPUs; {allowed}."
        )


class _Listener:
    """Reads the stream: keeps all of it, shows what is ours, remembers the last exception, whether the ServerApp has
    given the reason why it ended (`refused`), and whether it has said that a round is finished (`rounds`)."""

    def __init__(self, log: Path, show: Callable[[str], None], verbose: bool):
        self._log = log.open("w", encoding="utf-8")
        self._show = show
        self._verbose = verbose
        self.exception = ""
        self.refused = False
        self.rounds = False

    def __enter__(self) -> "_Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def hear(self, line: str) -> bool:
        """Take one line of the stream; whether it is the ServerApp's."""
        line = ANSI.sub("", line).rstrip()
        self._log.write(line + "\n")
        self._log.flush()
        # only at the start of a line: what a client prints has its worker's name before it
        ours = line.startswith((PREFIX, PREFIX_OF_ERRORS))
        self.refused = self.refused or line.startswith(PREFIX_OF_ERRORS)
        self.rounds = self.rounds or bool(FINISHED.match(line))
        if not ours and EXCEPTION.fullmatch(line):
            self.exception = line
        if self._verbose:
            self._show(line)
        elif line.startswith(PREFIX):
            self._show(line.removeprefix(PREFIX))
        return ours


class _RunFolderSearch:
    """The run's folder, as far as it is on this machine: the one that it goes on in, or the one whose status.json has
    the run's number."""

    def __init__(self, resumed: Path, results: Path, opened: Callable[[Path], None]):
        self._resumed = resumed if resumed.is_absolute() and resumed.is_dir() else None
        self._results = results
        self._opened = opened
        self._folder: Path | None = None

    def look(self, flower_run: str) -> Path | None:
        """The folder, if there is one by now."""
        if self._folder is None:
            self._folder = self._resumed or find_flower_run(flower_run, self._results, NEWEST)
            if self._folder is not None:
                self._opened(self._folder)
        return self._folder


def _outcome(superlink: Connection, listener: _Listener, folder: Path | None) -> Outcome:
    """What the SuperLink and the run's own folder say, whatever `flwr run` exited with."""
    status, details = superlink.status()
    # what came to nothing takes its folder away
    folder = folder if folder and folder.is_dir() else None
    if status == COMPLETED:
        if folder is None or (folder / "summary.json").exists():
            return Outcome(True, folder)
        return Outcome(False, folder, f"the run ended without a summary in {folder}.")
    if raised_words(details) and listener.refused:
        return Outcome(False, folder, raised_words(details))
    if is_silent(details):
        simulated = isinstance(superlink, SuperLink)
        process = "simulation's" if simulated else "run's server"
        remedy = "" if simulated or not _resumable(folder, listener) else "; resume it from its last checkpoint"
        details = f"the {process} process died, often because memory ran out: Flower no longer hears from it{remedy}"
    if isinstance(superlink, SuperLink) and folder is None and NO_REASON in details:
        # before our ServerApp has said anything
        details = (
            "the simulation did not begin. Ray gives up where one of its processes does not register within 30 s, as "
            f"on a busy machine, and {describe_load()}: end other programs or wait, and run the command again, or "
            "leave --flower out, since a run in one process needs no Ray"
        )
    reason = (details or f"Flower reports the run as {status}").rstrip(".")
    if listener.exception and (listener.exception.partition(": ")[2] or listener.exception) not in reason:
        reason += f" (the last exception in the log: {listener.exception})"
    return Outcome(False, folder, f"{reason}.")


def _resumable(folder: Path | None, listener: _Listener) -> bool:
    return listener.rounds if folder is None else (folder / "checkpoint.safetensors").exists()


def _refuse_no_app(app: Path) -> None:
    if not (app / "pyproject.toml").exists():
        raise FlowerError(
            f"{app} holds no pyproject.toml, so there is no Flower app to run; install Protosphere from its "
            "repository with `pip install -e .`."
        )


def _scratch() -> Path:
    """A new empty folder whose path leaves room for Ray's sockets."""
    room = len(tempfile.gettempdir()) + len("/protosphere-12345678") <= LONGEST_FOLDER
    return Path(tempfile.mkdtemp(prefix="protosphere-", dir=None if room else "/tmp"))


def _keep_log(scratch: Path, outcome: Outcome, results: Path) -> Path | None:
    """Add the stream to run.log in the run's folder, or leave it in the results folder when a run came to none."""
    text = (scratch / "run.log").read_text("utf-8")
    if not outcome.ok and (server_log := SuperLink.read_log(scratch)):
        text += "\n--- SuperLink ---\n" + ANSI.sub("", server_log)
    if outcome.folder and outcome.folder.is_dir():
        log = outcome.folder / "run.log"
    elif outcome.ok or not text:
        return None
    else:
        log = results / f"failed-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
    return append_log(log, text)
