"""One run over real Flower: submit the app, follow its log, ask how it ended, stop what was started.

The run goes to a SuperLink that somebody runs, by the name of its connection, or to one of our own in simulation mode.
Ours starts in an empty folder, since Ray's workers import from the folder in which their SuperLink began. `flwr list`
says how a run ended: `flwr run` exits 0 on a run that failed.
"""

import hashlib
import http.client
import json
import os
import queue
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.flower import (
    COMPLETED,
    NO_INSTALLATION,
    QUIET,
    bundle_of,
    has_finished,
    has_succeeded,
    is_silent,
    raised_words,
    refusal,
    run_status,
    submitted_run,
)
from protosphere.core.home import home, results_root
from protosphere.core.settings import Scalar, nearest
from protosphere.launch import processes
from protosphere.launch.processes import Interrupted, import_path, interruptible
from protosphere.record.folder import RunFolder, append_log, find_flower_run
from protosphere.server_app.app import PREFIX, PREFIX_OF_ERRORS
from protosphere.strategies import packed

ROOT = Path(__file__).resolve().parents[2]
# seconds, here and below; an overloaded machine takes half a minute to start `flwr`, not two seconds
ANSWER_PATIENCE = 60.0
START_PATIENCE = 60.0
STATUS_PATIENCE = 60.0
STOP_PATIENCE = 30.0
SILENCE = 120.0  # without a line of the stream until we ask whether the run is over
HANDSHAKE_PATIENCE = 5.0
CONNECTION = "sim"  # to a SuperLink of our own
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ROUND = re.compile(rf"{re.escape(PREFIX)}round +\d+/\d+ \| ")  # a line of `console_line`
EXCEPTION = re.compile(r"[A-Za-z_.]*(Error|Exception)\b.*")
# Ray keeps Unix sockets up to 68 characters below this folder, and no system takes paths of more than 103 for them
LONGEST_FOLDER = 35
NO_REASON = "An error was encountered. Ending simulation"  # all that Flower says where its engine did not begin
NEWEST = 100  # folders of runs, among which one that has just begun is
# what Flower takes into a bundle, and what tells it what to leave out
KINDS = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
NAMES = ("LICENSE", ".gitignore")


class FlowerError(RuntimeError):
    """Flower could not be started or did not answer; the message is one sentence for a person."""


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
        cpus_per_client: of these, the machine's cores divided by it run at a time; of more than there are Flower starts
            none and does not say why (`check_resources`).
        gpus_per_client: a share of a GPU; 0 keeps clients off it.
        show: called with each line that our ServerApp says, without its prefix, but why it failed, which the outcome
            tells; with `verbose`, with all lines.
        app: the folder of the app's pyproject.toml.
        connection: the name of a SuperLink's connection in Flower's configuration; empty for a simulation over one of
            our own. The three numbers above are the simulation's.
        ray: the address of the Ray cluster over which a simulation runs; empty for a Ray of our own. `cluster_at`
            checks what its nodes have.
        opened: called with the run's folder as soon as there is one on this machine.

    Raises:
        RunInterrupted: SIGINT, SIGTERM or SIGHUP came in; all was stopped first.
    """
    federation = ""
    if not connection:
        resources = f"client-resources-num-cpus={cpus_per_client} client-resources-num-gpus={float(gpus_per_client)}"
        federation = f"num-supernodes={clients} {resources}"
    results = results_root(str(run_config.get("results-dir", "")))
    resumed = Path(str(run_config.get("resume", "")))
    listener = Listener(show, verbose)
    interruption: Interrupted | None = None
    folder: Path | None = None
    scratch = _scratch()
    superlink = SuperLink(scratch, connection, ray)

    def find_folder() -> Path | None:
        """The run's folder, as far as it is on this machine and there by now."""
        nonlocal folder
        if folder is None:
            is_resumed = resumed.is_absolute() and resumed.is_dir()
            folder = resumed if is_resumed else find_flower_run(superlink.flower_run, results, NEWEST)
            if folder is not None:
                opened(folder)
        return folder

    try:
        with interruptible() as deafen:
            try:
                if not (app / "pyproject.toml").exists():
                    raise FlowerError(
                        f"{app} holds no pyproject.toml, so there is no Flower app to run; install Protosphere from "
                        "its repository with `pip install -e .`."
                    )
                superlink.start()
                superlink.submit(copy_app(app, scratch / "app"), packed(run_config), federation)
                for line in superlink.stream():
                    if listener.hear(line):
                        find_folder()
                status, details = superlink.status()
                message = describe_failure(status, details, listener, find_folder(), superlink.is_simulation)
            except Interrupted as signal:
                interruption = signal
                # the terminal itself may be what has gone
                with suppress(OSError):
                    show(f"{signal.name}: stopping Flower and all that it started")
                is_elsewhere = bool(connection) and find_folder() is None
                message = f"stopped by {signal.name}." if is_elsewhere else describe_stop(signal.name, find_folder())
            except FlowerError as error:
                message = str(error)
            finally:
                deafen()
                stop_command = superlink.stop()
            if stop_command:
                message = f"the run could not be stopped and may still be running: try `{stop_command}`."
            # what came to nothing takes its folder away
            folder = find_folder()
            folder = folder if folder and folder.is_dir() else None
            if interruption and folder:
                mark_stopped(folder)
            text = listener.text
            if message:
                text += superlink.log()
            # results are a folder of the SuperLink's machine: over a connection that may be another
            log = _keep_log(text, folder, results_root("") if connection else results) if folder or message else None
            outcome = Outcome(not message, folder, message, log, superlink.flower_run, listener.can_resume(folder))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if interruption:
        raise RunInterrupted(interruption.number, outcome)
    return outcome


# --- a SuperLink ------------------------------------------------------------------------------------------------


class SuperLink:
    """A SuperLink, and one run on it, by the `flwr` commands.

    Args:
        scratch: a folder of our own.
        name: of its connection, `[superlink.<name>]` in the config.toml of FLWR_HOME; empty for one of our own in
            simulation mode, in its own folder: own FLWR_HOME, own port, own Ray session.
        ray: the address of a cluster that has the clients of a simulation, and is left as it is; empty for a Ray of its
            own.

    Attributes:
        flower_run: the number that it gave the run; empty as long as it has not taken it.
    """

    def __init__(self, scratch: Path, name: str = "", ray: str = ""):
        self.is_simulation = not name
        self.flower_run = ""
        self._scratch = scratch
        self._name = name or CONNECTION
        self._environment = flower_environment()
        if self.is_simulation:
            # it works in another folder
            self._environment |= {"FLWR_HOME": str(scratch / "home"), "PROTOSPHERE_HOME": str(home().absolute())}
            self._environment |= {**NO_INSTALLATION, "RAY_USAGE_STATS_ENABLED": "0"}
            # the folder is where Ray keeps its session, and where it would look for a cluster to join
            self._environment.pop("RAY_TMPDIR" if ray else "RAY_ADDRESS", None)
            self._environment |= {"RAY_ADDRESS": ray} if ray else {"RAY_TMPDIR": str(scratch)}
        self._own: subprocess.Popen[str] | None = None
        self._commands: list[subprocess.Popen[str]] = []
        # the run is ours to stop: it is on, as far as we know, and the SuperLink is there to be told
        self._is_on = False

    def start(self) -> None:
        """Start ours, or see that somebody's answers.

        Raises:
            FlowerError: it does not start, there is no such connection, or nobody answers, and why.
        """
        (self._scratch / "cwd").mkdir(exist_ok=True)
        if self.is_simulation:
            self._start_own()
            return
        entries, place = connections(), flower_home() / "config.toml"
        if self._name not in entries:
            raise FlowerError(
                f"there is no connection `{self._name}` in {place}{nearest(self._name, entries)}; it names "
                f"{', '.join(entries) or 'none'}, and docs/deployment.md shows one."
            )
        answer = self._flwr("list", self._name, "--format", "json")
        if not has_succeeded(answer):
            reason = obstacle(entries[self._name]) or refusal(answer) or "no answer"
            raise FlowerError(
                f"the SuperLink of the connection `{self._name}` cannot be used: {reason}; docs/deployment.md has what "
                f"to do, and {place} the connection."
            )

    def _start_own(self) -> None:
        port = free_port()
        (self._scratch / "home").mkdir()
        (self._scratch / "home" / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        command = [find_executable("flower-superlink"), *options, "--disable-runtime-dependency-installation"]
        with (self._scratch / "superlink.log").open("w") as log:
            self._own = self._start(command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_PATIENCE
        while not is_healthy(port):
            ended = self._own.poll()
            if ended is not None or time.monotonic() > deadline:
                how = f"ended with exit code {ended}"
                if ended is None:
                    how = f"has not answered for {START_PATIENCE:.0f} s ({describe_load()})"
                last = self.log().strip().rpartition("\n")[2]
                raise FlowerError(f"Flower's SuperLink {how} on port {port}; its last line is: {last or 'none'}.")
            time.sleep(0.1)

    def log(self) -> str:
        """All that a SuperLink of ours has said, below a headline; empty where it has said nothing."""
        file = self._scratch / "superlink.log"
        text = file.read_text("utf-8", errors="replace") if file.exists() else ""
        return "\n--- SuperLink ---\n" + ANSI.sub("", text) if text else ""

    def submit(self, app: Path, run_config: Mapping[str, Scalar], federation: str = "") -> None:
        """Have it take the app as a run.

        Args:
            federation: Flower's `--federation-config`, of a simulation.

        Raises:
            FlowerError: the run was refused, in Flower's words.
        """
        settings = self._scratch / "settings.toml"
        settings.write_text(as_toml(run_config), encoding="utf-8")
        arguments = ["run", str(app), self._name, "--format", "json", "-c", str(settings)]
        if federation:
            arguments += ["--federation-config", federation]
        command = self._start([find_executable("flwr"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        answer = errors = ""
        try:
            answer, errors = command.communicate()
        except KeyboardInterrupt:
            # it may have been taken: what is on is to be stopped
            with suppress(subprocess.TimeoutExpired):
                answer = command.communicate(timeout=STOP_PATIENCE)[0]
            raise
        finally:
            self.flower_run = submitted_run(answer)
            self._is_on = bool(self.flower_run)
        if not self.flower_run:
            reason = refusal(answer) or refusal(errors) or f"`flwr run` ended with exit code {command.returncode}"
            raise FlowerError(f"Flower did not start the run: {reason}.")

    def stream(self) -> Iterator[str]:
        """The run's log, line by line, until it ends.

        Flower waits for ever on a connection that was dropped without a word, as routers do with those that are silent:
        so after a long silence the run is asked for.
        """
        words = [find_executable("flwr"), "log", self.flower_run, self._name, "--stream"]
        command = self._start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()

        def read() -> None:
            assert command.stdout is not None
            for line in command.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        patience = SILENCE
        while True:
            try:
                line = lines.get(timeout=patience)
            except queue.Empty:
                if patience < SILENCE:
                    break
                if has_finished(self._look()[0]):
                    # its last lines may be on their way
                    patience = SILENCE / 10
                continue
            if not line:
                break
            yield line
        processes.stop(command)

    def status(self) -> tuple[str, str]:
        """The run's final status, such as `finished:failed`, and what Flower says about it (may be empty).

        Raises:
            FlowerError: the SuperLink does not answer, or the run has not ended.
        """
        deadline = time.monotonic() + STATUS_PATIENCE
        status, details = self._look()
        while not has_finished(status) and time.monotonic() < deadline:
            if self._own is not None and self._own.poll() is not None:
                raise FlowerError(
                    f"Flower's SuperLink ended with exit code {self._own.returncode} in the middle of the run."
                )
            time.sleep(0.5)
            status, details = self._look()
        # what has ended, or what only we lost sight of, is not ours to stop
        self._is_on = False
        if has_finished(status):
            return status, details
        sign = "the SuperLink does not answer any more"
        if status != "unknown":
            sign = f"the log of the run ended, but Flower still calls it {status}"
        if self.is_simulation:
            raise FlowerError(f"{sign}; the log says more.")
        raise FlowerError(
            f"{sign}. If only this connection broke, the run goes on: `flwr log {self.flower_run} {self._name}` "
            f"follows it, `flwr stop {self.flower_run} {self._name}` ends it. Otherwise it is lost except for its last "
            "checkpoint: resume it if the log shows a finished round."
        )

    def stop(self) -> str:
        """Stop the run if it is still on, then all that was started here.

        Returns:
            The command that stops the run, where it goes on elsewhere and could not be stopped; else nothing.
        """
        if self._own is not None and self._own.poll() is not None:
            self._is_on = False
        if self._is_on:
            answer = self._flwr("stop", self.flower_run, self._name, "--format", "json", patience=STOP_PATIENCE)
            # it may have ended by itself just now
            self._is_on = not has_succeeded(answer) and not has_finished(self._look(STOP_PATIENCE)[0])
        processes.stop(*self._commands)
        is_lost = self._is_on and not self.is_simulation
        return f"flwr stop {self.flower_run} {self._name}" if is_lost else ""

    def _look(self, patience: float = ANSWER_PATIENCE) -> tuple[str, str]:
        """The run's status and what Flower says about it; `unknown` when nobody answers."""
        arguments = ("list", self._name, "--run-id", self.flower_run, "--format", "json")
        return run_status(self._flwr(*arguments, patience=patience))

    def _flwr(self, *words: str, patience: float = ANSWER_PATIENCE) -> str:
        return run_flwr(*words, patience=patience, **self._place())

    def _place(self) -> dict[str, Any]:
        return {"cwd": self._scratch / "cwd", "env": self._environment, "scratch": self._scratch}

    def _start(self, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        process = processes.start(command, **self._place(), **options)
        self._commands.append(process)
        return process


def run_flwr(*words: str, patience: float = ANSWER_PATIENCE, **options: Any) -> str:
    """What a `flwr` command prints; empty when it takes too long.

    Args:
        options: of `processes.start`.
    """
    command = [find_executable("flwr"), *words]
    process = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options)
    try:
        return process.communicate(timeout=patience)[0]
    except subprocess.TimeoutExpired:
        return ""
    finally:
        processes.stop(process)


def find_executable(name: str) -> str:
    """The path of a command of Flower's: beside this Python (its environment need not be active), or on PATH.

    Raises:
        FlowerError: there is none.
    """
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if not path:
        raise FlowerError(f"`{name}` is neither beside {sys.executable} nor on PATH; install Protosphere with pip.")
    return path


def flower_environment() -> dict[str, str]:
    """The environment for Flower's commands, which find each other by name: no telemetry, no question of updates, lines
    that are not broken, no proxy to this machine."""
    environment = dict(os.environ)
    direct = environment.get("no_proxy") or environment.get("NO_PROXY")
    direct = ",".join(filter(None, (direct, "127.0.0.1,localhost")))
    path = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), environment.get("PATH"))))
    return environment | {
        **QUIET,
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": import_path(),
        "PATH": path,
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


def as_toml(run_config: Mapping[str, Scalar]) -> str:
    """Settings as a TOML document; the dots of a name stand for tables, as Flower reads them."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in run_config.items())


def toml_value(value: Scalar) -> str:
    """A setting's value as TOML writes it."""
    # JSON's forms are TOML's but for the one control character that JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def describe_load() -> str:
    """How busy this machine is, for errors that come of it."""
    return f"its load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def free_port() -> int:
    """A TCP port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(port: int, authority: Path | None = None) -> bool:
    """Whether a SuperLink answers on this machine; no proxy is asked.

    Args:
        authority: the certificate of its authority; None where it speaks no TLS.
    """
    context = ssl.create_default_context(cafile=authority) if authority else None
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    scheme = "https" if authority else "http"
    with (
        suppress(OSError, http.client.HTTPException),
        direct.open(f"{scheme}://127.0.0.1:{port}/health", timeout=5),
    ):
        return True
    return False


# --- the bundle of an app ---------------------------------------------------------------------------------------


def copy_app(app: Path, target: Path) -> Path:
    """Copy the files from which Flower chooses into the folder `target`, which it gives.

    `flwr run` resolves the path of every file below the folder: with a virtual environment in it, as `make` puts one
    there, 84,000 files and 7.5 processor seconds, without it 0.1.

    Raises:
        FlowerError: one cannot be read or written.
    """
    into = os.path.realpath(target)
    path = str(app)
    try:
        for place, folders, files in os.walk(app):
            # links are none of them for Flower either; hidden folders and environments hold none
            folders[:] = [folder for folder in folders if not _is_foreign(os.path.join(place, folder), into)]
            to = target / Path(place).relative_to(app)
            to.mkdir(parents=True, exist_ok=True)
            for name in files:
                path = os.path.join(place, name)
                if (name.endswith(KINDS) or name in NAMES) and not os.path.islink(path):
                    # another run's, such as one in its results, may go meanwhile
                    with suppress(FileNotFoundError):
                        shutil.copyfile(path, to / name)
    except OSError as error:
        raise FlowerError(
            f"{path} cannot be copied for Flower's bundle ({error.strerror or error}); let it be read, remove it from "
            f"{app}, or make room in {target.parent}."
        ) from None
    return target


def _is_foreign(folder: str, into: str) -> bool:
    name = os.path.basename(folder)
    is_environment = os.path.exists(os.path.join(folder, "pyvenv.cfg"))
    return name[0] == "." or name == "__pycache__" or is_environment or os.path.realpath(folder) == into


def digest_of(app: Path) -> str:
    """SHA-256 of the bundle that `flwr run` makes of an app, which sites may list (`deploy/supernode.sh --allow-app`).

    Raises:
        FlowerError: a file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="protosphere-") as folder:
        return hashlib.sha256(bundle_of(copy_app(app, Path(folder)))).hexdigest()


# --- why a SuperLink is out of reach ----------------------------------------------------------------------------


def flower_home() -> Path:
    """The folder of Flower's configuration."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser()


def connections() -> dict[str, Mapping[str, Any]]:
    """The SuperLinks that Flower's configuration names, each with its settings; none where it cannot be read."""
    try:
        table = tomllib.loads((flower_home() / "config.toml").read_text("utf-8")).get("superlink", {})
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in table.items() if isinstance(entry, dict)}


def obstacle(entry: Mapping[str, Any]) -> str:
    """What keeps a connection from its SuperLink, in words without a full stop, by a handshake of our own: Flower has
    the same words for all reasons. Empty where none is found.

    Args:
        entry: of `connections`.
    """
    address, roots, is_insecure = entry.get("address", ""), entry.get("root-certificates"), bool(entry.get("insecure"))
    host, _, port = str(address).rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        # Flower's `:local:`, which it starts itself, or no address at all
        return ""
    try:
        context = ssl.create_default_context(cafile=Path(roots).expanduser() if roots and not is_insecure else None)
    except OSError as error:
        return f"its root-certificates {roots} cannot be used ({getattr(error, 'reason', None) or error.strerror})"
    if is_insecure:
        # one that speaks TLS where it should not is told by any handshake, whatever its certificate
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, int(port)), timeout=HANDSHAKE_PATIENCE) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return f"{address} speaks TLS, and the connection is insecure" if is_insecure else ""
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {address} is refused ({error.verify_message.rstrip('.')})"
    except ssl.SSLError as error:
        return "" if is_insecure else f"{address} does not speak TLS ({error.reason})"
    except (OSError, OverflowError, UnicodeError) as error:
        # a proxy may come where we do not
        if urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
            return ""
        return f"{address} cannot be reached ({getattr(error, 'strerror', None) or error})"


# --- what a run says, and how it ended --------------------------------------------------------------------------


class Listener:
    """Keeps all lines of a run's stream, shows ours, and remembers what tells of the run's end.

    Attributes:
        exception: the last exception that is no ServerApp's reason.
        has_reason: whether the ServerApp has given the reason why it ended.
        has_round: whether it has said that a round is finished.
    """

    def __init__(self, show: Callable[[str], None], verbose: bool = False):
        self._show = show
        self._verbose = verbose
        self._lines: list[str] = []
        self.exception = ""
        self.has_reason = False
        self.has_round = False

    @property
    def text(self) -> str:
        """All that it has heard."""
        return "".join(f"{line}\n" for line in self._lines)

    def hear(self, line: str) -> bool:
        """Take one line of the stream; whether it is the ServerApp's."""
        line = ANSI.sub("", line).rstrip()
        self._lines.append(line)
        # only at the start of a line: what a client prints has its worker's name before it
        is_ours = line.startswith((PREFIX, PREFIX_OF_ERRORS))
        self.has_reason = self.has_reason or line.startswith(PREFIX_OF_ERRORS)
        self.has_round = self.has_round or bool(ROUND.match(line))
        if not is_ours and EXCEPTION.fullmatch(line):
            self.exception = line
        if self._verbose:
            self._show(line)
        elif line.startswith(PREFIX):
            self._show(line.removeprefix(PREFIX))
        return is_ours

    def can_resume(self, folder: Path | None) -> bool:
        """Whether there is a checkpoint: in the run's folder or, where that is not here, by what was heard."""
        return self.has_round if folder is None else (folder / "checkpoint.safetensors").exists()


def describe_failure(
    status: str, details: str, listener: Listener, folder: Path | None, is_simulation: bool = True
) -> str:
    """Why a run failed, by what its SuperLink says, what it has said itself, and its folder; empty where it did not."""
    if status == COMPLETED:
        is_whole = folder is None or not folder.is_dir() or (folder / "summary.json").exists()
        return "" if is_whole else f"the run ended without a summary in {folder}."
    if raised_words(details) and listener.has_reason:
        return raised_words(details)
    if is_silent(details):
        process = "simulation's" if is_simulation else "run's server"
        can_go_on = not is_simulation and listener.can_resume(folder)
        remedy = "; resume it from its last checkpoint" if can_go_on else ""
        details = f"the {process} process died, often because memory ran out: Flower no longer hears from it{remedy}"
    if is_simulation and folder is None and NO_REASON in details:
        # before our ServerApp has said anything
        details = (
            "the simulation did not begin. Ray gives up where one of its processes does not register within 30 s, as "
            f"on a busy machine, and {describe_load()}: end other programs or wait, and run the command again, or "
            "leave --on flower out, since a run in one process needs no Ray"
        )
    reason = (details or f"Flower reports the run as {status}").rstrip(".")
    if listener.exception and (listener.exception.partition(": ")[2] or listener.exception) not in reason:
        reason += f" (the last exception in the log: {listener.exception})"
    return f"{reason}."


def _scratch() -> Path:
    """A new empty folder whose path leaves room for Ray's sockets."""
    has_room = len(tempfile.gettempdir()) + len("/protosphere-12345678") <= LONGEST_FOLDER
    return Path(tempfile.mkdtemp(prefix="protosphere-", dir=None if has_room else "/tmp"))


def _keep_log(text: str, folder: Path | None, results: Path) -> Path | None:
    """Add the stream to run.log in the run's folder, or leave it in the results folder when a run came to none."""
    if not text:
        return None
    failed = results / f"failed-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
    return append_log(folder / "run.log" if folder else failed, text)


# --- a run that did not come to its end, over Flower or not -----------------------------------------------------


def describe_stop(name: str, folder: Path | None) -> str:
    """A sentence on a run that the signal `name` ended.

    Args:
        folder: the run's; None when it came to none.
    """
    if folder is not None and not folder.is_dir():
        return f"stopped by {name}."
    last_round = _find_last_round(folder) if folder else 0
    when = f"after round {last_round}" if last_round else "before a round was finished"
    return f"stopped by {name} {when}."


def mark_stopped(folder: Path) -> None:
    """Say in a run's folder that it was stopped, and leave its report: nobody in the run could do so any more."""
    from protosphere.reports.report import leave_report

    if not folder.is_dir():
        return
    record = RunFolder(folder)
    with suppress(SettingError):
        record.write_status(record.status() | {"state": "stopped"})
    if _find_last_round(folder):
        leave_report(folder)


def _find_last_round(folder: Path) -> int:
    """The last finished round."""
    try:
        return max((line["round"] for line in RunFolder(folder).lines(with_clients=False)), default=0)
    except (SettingError, KeyError):
        return 0
