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

from experiments.runtime.afterwards import stopped
from experiments.runtime.connection import Connection, FlowerError
from experiments.runtime.guardian import guarded
from experiments.runtime.processes import Interrupted, interruptible
from experiments.runtime.superlink import SuperLink
from federation.settings import Scalar, SettingError
from runs.folder import results_root
from server_app.app import PREFIX, RESULTS
from strategies import packed

ROOT = Path(__file__).resolve().parents[2]
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
EXCEPTION = re.compile(r"[A-Za-z_.]*(Error|Exception)\b.*")
# Ray keeps Unix sockets up to 68 characters below this folder, and no system takes paths of more than 103 for them
LONGEST_FOLDER = 35


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        ok: it was completed.
        folder: the run's folder, on the SuperLink's machine; None when it came to none.
        message: one sentence on why it failed; empty when it did not.
        log: all that Flower, Ray and both apps said; None when a completed run has no folder to keep it.
        started: Flower took the run; where it did not, there is nothing to go on with.
    """

    ok: bool
    folder: Path | None = None
    message: str = ""
    log: Path | None = None
    started: bool = True


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
) -> Outcome:
    """Run a Flower app, in simulation or on the nodes of a SuperLink, and wait for its end. Nothing that was started
    is left behind, not even when this process is killed.

    Args:
        run_config: settings by their full names, with absolute paths; what is missing takes the app's default.
        clients: simulated clients; our ServerApp waits for the exact number that the setting `clients` names.
        cpus_per_client: of these, the machine's cores divided by it run at a time.
        gpus_per_client: a share of a GPU; 0 keeps clients off it.
        show: called with each line that our ServerApp says, without its prefix; with `verbose`, with all lines.
        app: the folder of the app's pyproject.toml.
        connection: the name of a SuperLink's connection in Flower's configuration; empty for a simulation over one of
            our own. The three numbers above are the simulation's.

    Raises:
        SettingError: this machine lacks the CPUs or GPUs asked for.
        RunInterrupted: SIGINT, SIGTERM or SIGHUP came in; all was stopped first.
    """
    check_resources(cpus_per_client, gpus_per_client)
    resources = f"client-resources-num-cpus={cpus_per_client} client-resources-num-gpus={float(gpus_per_client)}"
    federation = "" if connection else f"num-supernodes={clients} {resources}"
    scratch = _scratch()
    listener = _Listener(scratch / "run.log", show, verbose)
    interruption: Interrupted | None = None
    outcome = Outcome(False)
    try:
        with interruptible() as deafen, guarded(scratch) as tell:
            superlink = Connection(scratch, tell, connection) if connection else SuperLink(scratch, tell)
            try:
                _refuse_no_app(app)
                superlink.start()
                if superlink.notice:
                    show(f"warning: {superlink.notice}")
                superlink.run(app, packed(run_config), listener.hear, federation)
                outcome = _outcome(superlink, listener)
            except Interrupted as signal:
                interruption = signal
                # the terminal itself may be what has gone
                with suppress(OSError):
                    show(f"{signal.name}: stopping Flower and all that it started")
                outcome = Outcome(False, listener.folder, stopped(signal.name, listener.folder))
            except FlowerError as error:
                words = listener.error or str(error)
                outcome = Outcome(False, listener.folder, words, started=superlink.submitted)
            finally:
                deafen()
                left = superlink.stop()
                listener.close()
            if left:
                outcome = replace(outcome, message=f"the run could not be stopped and may still be on: try `{left}`.")
            # the setting is a folder of the SuperLink's machine
            results = results_root("" if connection else str(run_config.get("results-dir", "")))
            outcome = replace(outcome, log=_keep_log(scratch, outcome, results))
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
    """Reads the stream: keeps all of it, shows what is ours, remembers what decides the outcome."""

    def __init__(self, log: Path, show: Callable[[str], None], verbose: bool):
        self._log = log.open("w", encoding="utf-8")
        self._show = show
        self._verbose = verbose
        self.folder: Path | None = None
        self.error = ""
        self.exception = ""

    def hear(self, line: str) -> None:
        """Take one line of the stream."""
        line = ANSI.sub("", line).rstrip()
        self._log.write(line + "\n")
        self._log.flush()
        # only at the start of a line: what a client prints has its worker's name before it
        ours = line.removeprefix(PREFIX) if line.startswith(PREFIX) else None
        if ours is None:
            self.exception = line if EXCEPTION.fullmatch(line) else self.exception
        elif ours.startswith(RESULTS):
            self.folder = Path(ours.removeprefix(RESULTS))
        elif ours.startswith("error: "):
            self.error = ours.removeprefix("error: ")
        if self._verbose:
            self._show(line)
        elif ours is not None:
            self._show(ours)

    def close(self) -> None:
        self._log.close()


def _outcome(superlink: Connection, listener: _Listener) -> Outcome:
    """What the SuperLink and the run's own folder say, whatever `flwr run` exited with."""
    status, details = superlink.status()
    # of a folder on another machine nothing can be said
    here = listener.folder and (listener.folder.is_dir() or isinstance(superlink, SuperLink))
    unsummed = listener.folder and here and not (listener.folder / "summary.json").exists()
    if status == "finished:completed" and not listener.error and not unsummed:
        return Outcome(True, listener.folder)
    if "No heartbeat" in details:
        simulated = isinstance(superlink, SuperLink)
        who, remedy = ("simulation's", "") if simulated else ("run's server", "; resume it from its last checkpoint")
        details = f"the {who} process died, often for want of memory: Flower hears nothing of it any more{remedy}"
    reason = (details or f"Flower calls the run {status}").rstrip(".")
    if listener.exception and (listener.exception.partition(": ")[2] or listener.exception) not in reason:
        reason += f" (the last exception in the log: {listener.exception})"
    if status == "finished:completed":
        reason = f"the run ended without a summary in {listener.folder}"
    return Outcome(False, listener.folder, listener.error or f"{reason}.")


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


class KeptLines:
    """The lines of a run in this process: each is passed on to `show`, and all of them are left in its run.log.

    Attributes:
        opened: the run's folder, once it is told.
    """

    def __init__(self, show: Callable[[str], None]):
        self._show = show
        self._lines: list[str] = []
        self.opened: Path | None = None

    def hear(self, line: str) -> None:
        """Take one line."""
        self._lines.append(line)
        self._show(line)

    @property
    def folder(self) -> Path | None:
        """The run's folder; None when it came to none or took it away again."""
        return self.opened if self.opened and self.opened.is_dir() else None

    def save(self) -> Path | None:
        """The log; None when it cannot be written, or there is no folder."""
        if self.folder is None:
            return None
        return _append(self.folder / "run.log", "".join(f"{line}\n" for line in self._lines))


def _keep_log(scratch: Path, outcome: Outcome, results: Path) -> Path | None:
    """Add the stream to run.log in the run's folder, or leave it in the results folder when a run came to none."""
    text = (scratch / "run.log").read_text("utf-8")
    if not outcome.ok and (own := SuperLink.read_log(scratch)):
        text += "\n--- SuperLink ---\n" + ANSI.sub("", own)
    if outcome.folder and outcome.folder.is_dir():
        log = outcome.folder / "run.log"
    elif outcome.ok or not text:
        return None
    else:
        log = results / f"failed-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
    return _append(log, text)


def _append(log: Path, text: str) -> Path | None:
    """Add to a log, since a resumed run goes on with its own; None when it cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return log
