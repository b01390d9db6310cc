"""A run over Flower: submit the app, follow its log, ask how it ended, and stop what was started.

The run goes to an existing SuperLink, by the name of its connection, or to a SuperLink of our own in simulation mode.
Ours starts in an empty folder, since Ray's workers import from their SuperLink's folder. We ask `flwr list` how a run
ended, because `flwr run` exits 0 even if the run failed.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import SettingError
from protosphere.core.flower import (
    COMPLETED,
    NO_INSTALLATION,
    QUIET,
    bundle_of,
    has_finished,
    has_succeeded,
    refusal,
    run_status,
    submitted_run,
)
from protosphere.core.home import home, results_root
from protosphere.core.settings import Scalar
from protosphere.launch import processes
from protosphere.launch.processes import Interrupted, import_path, interruptible
from protosphere.record.folder import RunFolder, append_log, find_flower_run
from protosphere.server_app.app import PREFIX, PREFIX_OF_ERRORS
from protosphere.strategies import packed

if TYPE_CHECKING:
    import httpx

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds for an answer; an overloaded machine takes half a minute to start `flwr`
STATUS_PATIENCE = 60.0  # seconds from the end of a run's log until Flower reports how the run ended
STOP_PATIENCE = 30.0  # seconds for an answer after Ctrl-C
CONNECTION = "sim"  # the connection to a SuperLink of our own
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# files that Flower includes in a bundle, and the file that lists exclusions
KINDS = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
NAMES = ("LICENSE", ".gitignore")


class FlowerError(RuntimeError):
    """Flower did not start, refused or did not answer, or an app is unusable. The message is one sentence."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        ok: whether the run was completed.
        folder: the run's folder, whose run.log has the output of Flower, Ray and both apps; None if there is none on
            this machine.
        message: one sentence on why it failed; "" if it did not.
        flower_run: the run's number in Flower; "" if Flower did not accept it.
        signal: the number of the signal that ended it; 0 if none did.
    """

    ok: bool
    folder: Path | None = None
    message: str = ""
    flower_run: str = ""
    signal: int = 0


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
) -> Outcome:
    """Run a Flower app, in a simulation or on the nodes of a SuperLink, and wait for its end. No process is left
    behind, not even if this one is killed; SIGINT, SIGTERM and SIGHUP stop the run.

    Args:
        run_config: settings by their full names, with absolute paths; the app's defaults apply to missing ones.
        clients: the number of simulated clients; our ServerApp waits for exactly as many as the setting `clients` says.
        cpus_per_client: cores per client; the machine's cores divided by it run at a time. If it exceeds them, Flower
            starts none without saying why (`check_resources`).
        gpus_per_client: a share of a GPU; 0 keeps clients off it.
        show: called with each line of our ServerApp, without its prefix, except for the reason of a failure, which is
            in the outcome; with `verbose`, with all lines.
        app: the folder of the app's pyproject.toml.
        connection: the name of a SuperLink's connection in Flower's configuration; "" for a simulation over a SuperLink
            of our own. The three numbers above are for a simulation only.
        ray: the address of the Ray cluster for a simulation; "" for a Ray of our own. `nodes_at` lists its nodes.
    """
    federation = ""
    if not connection:
        resources = f"client-resources-num-cpus={cpus_per_client} client-resources-num-gpus={float(gpus_per_client)}"
        federation = f"num-supernodes={clients} {resources}"
    results = results_root(str(run_config.get("results-dir", "")))
    lines: list[str] = []
    number = 0
    resumed = Path(str(run_config.get("resume", "")))
    # not TMPDIR: Ray puts Unix sockets below it, whose paths must be short
    scratch = Path(tempfile.mkdtemp(prefix="protosphere-", dir="/tmp"))
    superlink = SuperLink(scratch, connection, ray)

    def find_folder() -> Path | None:
        if resumed.is_absolute() and resumed.is_dir():
            return resumed
        return find_flower_run(superlink.flower_run, results)

    try:
        with interruptible() as deafen:
            try:
                bundle = copy_app(app, scratch / "app")
                superlink.start()
                superlink.submit(bundle, packed(run_config), federation)
                for line in superlink.stream():
                    lines.append(line)
                    if verbose:
                        show(line)
                    # only at the start of a line: output of clients begins with their worker's name
                    elif line.startswith(PREFIX):
                        show(line.removeprefix(PREFIX))
                message = describe_end(*superlink.status(), lines, find_folder())
            except Interrupted as interruption:
                number = interruption.number
                # the terminal itself may be gone
                with suppress(OSError):
                    show(f"{interruption.name}: stopping Flower and all that it started")
            except FlowerError as error:
                message = str(error)
            finally:
                deafen()
                stop_command = superlink.stop()
            if number:
                # rounds may have ended during the stop
                message = describe_stop(Interrupted(number).name, find_folder())
            if stop_command:
                message = f"the run could not be stopped and may still be running: try `{stop_command}`."
            # None if the run has ended without a round, and has removed its folder
            folder = find_folder()
            if folder is not None:
                text = "".join(f"{line}\n" for line in lines)
                append_log(folder / "run.log", text + superlink.log() if message else text)
                if number:
                    report_stopped(folder)
            return Outcome(not message, folder, message, superlink.flower_run, number)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# --- a SuperLink ------------------------------------------------------------------------------------------------


class SuperLink:
    """A SuperLink and one run on it, controlled by the `flwr` commands.

    Args:
        scratch: a temporary folder.
        name: the name of its connection, `[superlink.<name>]` in the config.toml of FLWR_HOME; "" for one of our own in
            simulation mode, with its own folder, FLWR_HOME, port and Ray session.
        ray: the address of an existing cluster for the clients of a simulation, which is not stopped; "" for its own
            Ray.

    Attributes:
        flower_run: the run's number; "" until the SuperLink has accepted it.
    """

    def __init__(self, scratch: Path, name: str = "", ray: str = ""):
        self.is_simulation = not name
        self.flower_run = ""
        self._scratch = scratch
        self._name = name or CONNECTION
        self._environment = flower_environment()
        if self.is_simulation:
            # it runs in another folder
            self._environment |= {"FLWR_HOME": str(scratch / "home"), "PROTOSPHERE_HOME": str(home().absolute())}
            self._environment |= {**NO_INSTALLATION, "RAY_USAGE_STATS_ENABLED": "0"}
            if ray:
                self._environment["RAY_ADDRESS"] = ray
            else:
                # the folder of Ray's session
                self._environment["RAY_TMPDIR"] = str(scratch)
                self._environment.pop("RAY_ADDRESS", None)
        self._options: dict[str, Any] = {"cwd": scratch / "cwd", "env": self._environment}
        # in a simulation it is removed with our own SuperLink, whose Ray has its session there
        self._options["scratch"] = "" if self.is_simulation else scratch
        self._own: subprocess.Popen[str] | None = None
        self._commands: list[subprocess.Popen[str]] = []
        # the run is ours to stop
        self._is_on = False

    def start(self) -> None:
        """Start our own, or check that an existing one answers.

        Raises:
            FlowerError: it does not start or answer, or there is no such connection; the message says why.
        """
        (self._scratch / "cwd").mkdir()
        if self.is_simulation:
            self._start_own()
            return
        answer = self._flwr("list", self._name, "--format", "json")
        if not has_succeeded(answer):
            reason = obstacle(self._name) or refusal(answer) or "no answer"
            raise FlowerError(
                f"the SuperLink of the connection `{self._name}` cannot be used: {reason}; docs/deployment.md "
                "describes the setup."
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
            self._own = self._start(command, stdout=log, stderr=subprocess.STDOUT, scratch=self._scratch)
        deadline = time.monotonic() + PATIENCE
        while not is_healthy(port):
            if self._own.poll() is not None or time.monotonic() > deadline:
                last = self.log().strip().rpartition("\n")[2]
                raise FlowerError(
                    f"Flower's SuperLink did not start on port {port} within {PATIENCE:g} s; its last line is: "
                    f"{last or 'none'}."
                )
            time.sleep(0.1)

    def log(self) -> str:
        """The output of our own SuperLink, below a headline; "" if there is none."""
        file = self._scratch / "superlink.log"
        text = file.read_text("utf-8", errors="replace") if file.exists() else ""
        return "\n--- SuperLink ---\n" + ANSI.sub("", text) if text else ""

    def submit(self, app: Path, run_config: Mapping[str, Scalar], federation: str = "") -> None:
        """Submit the app as a run.

        Args:
            federation: Flower's `--federation-config`, for a simulation.

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
            # the run may have been accepted and must then be stopped
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
        """The run's log, line by line and without colours, until it ends."""
        command = [find_executable("flwr"), "log", self.flower_run, self._name, "--stream"]
        process = self._start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        for line in process.stdout:
            yield ANSI.sub("", line).rstrip()

    def status(self) -> tuple[str, str]:
        """The run's final status, such as `finished:failed`, and what Flower says about it (may be empty).

        Raises:
            FlowerError: the SuperLink does not answer, or the run has not ended.
        """
        deadline = time.monotonic() + STATUS_PATIENCE
        status, details = self._look()
        while not has_finished(status) and time.monotonic() < deadline:
            if self._own is not None and self._own.poll() is not None:
                break
            time.sleep(0.5)
            status, details = self._look()
        # a run that has ended, or that only we lost contact with, must not be stopped
        self._is_on = False
        if has_finished(status):
            return status, details
        if self.is_simulation:
            raise FlowerError("Flower's SuperLink ended, or stopped answering, in the middle of the run.")
        raise FlowerError(
            f"the log of the run ended, and its status is {status}. If only this connection broke, the run continues: "
            f"`flwr log {self.flower_run} {self._name}` follows it, `flwr stop {self.flower_run} {self._name}` ends "
            "it. Otherwise it is lost except for its last checkpoint: resume it if the log shows a finished round."
        )

    def stop(self) -> str:
        """Stop the run if it has not ended, then everything that was started here.

        Returns:
            The command that stops the run, if it continues elsewhere and could not be stopped; otherwise "".
        """
        if self._own is not None and self._own.poll() is not None:
            self._is_on = False
        if self._is_on:
            answer = self._flwr("stop", self.flower_run, self._name, "--format", "json", patience=STOP_PATIENCE)
            # it may just have ended by itself
            self._is_on = not has_succeeded(answer) and not has_finished(self._look(STOP_PATIENCE)[0])
        processes.stop(*self._commands)
        is_lost = self._is_on and not self.is_simulation
        return f"flwr stop {self.flower_run} {self._name}" if is_lost else ""

    def _look(self, patience: float = PATIENCE) -> tuple[str, str]:
        """The run's status and what Flower says about it; `unknown` without an answer."""
        arguments = ("list", self._name, "--run-id", self.flower_run, "--format", "json")
        return run_status(self._flwr(*arguments, patience=patience))

    def _flwr(self, *words: str, patience: float = PATIENCE) -> str:
        return run_flwr(*words, patience=patience, **self._options)

    def _start(self, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        process = processes.start(command, **(self._options | options))
        self._commands.append(process)
        return process


def run_flwr(*words: str, patience: float = PATIENCE, **options: Any) -> str:
    """The output of a `flwr` command; "" if it takes too long.

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
    """The path of one of Flower's commands: beside this Python (its environment need not be active), or on PATH.

    Raises:
        FlowerError: there is none.
    """
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if not path:
        raise FlowerError(f"`{name}` is neither beside {sys.executable} nor on PATH; install Protosphere with pip.")
    return path


def flower_environment() -> dict[str, str]:
    """The environment for Flower's commands, which find each other by name: no telemetry, no update prompt, unbroken
    lines, and no proxy to this machine."""
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
    """Settings as a TOML document; dots in a name denote tables, as Flower reads them."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in run_config.items())


def toml_value(value: Scalar) -> str:
    """A setting's value as TOML writes it."""
    # JSON's notation is valid TOML except for one control character that JSON does not escape
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(port: int, authority: Path | None = None) -> bool:
    """Whether a SuperLink on this machine answers that it is healthy; no proxy is used.

    Args:
        authority: the certificate of its authority; None without TLS.
    """
    import httpx

    with suppress(OSError, httpx.HTTPError):
        return _ask_health(f"{'https' if authority else 'http'}://127.0.0.1:{port}", authority).is_success
    return False


def _ask_health(url: str, authority: Path | None) -> "httpx.Response":
    """A SuperLink's answer to a health check; no proxy is used."""
    import httpx

    trust = ssl.create_default_context(cafile=authority)
    return httpx.get(f"{url}/health", verify=trust, trust_env=False, timeout=5)


def obstacle(name: str) -> str:
    """Why a SuperLink is out of reach, in the words of the system or OpenSSL, since Flower's message is always the
    same. "" if the reason is unknown or the SuperLink answers."""
    import httpx

    file = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "config.toml"
    try:
        entry = tomllib.loads(file.read_text("utf-8"))["superlink"][name]
        url = f"{'http' if entry.get('insecure') else 'https'}://{entry['address']}"
        roots = entry.get("root-certificates")
        authority = Path(roots).expanduser() if roots else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return ""
    try:
        _ask_health(url, authority)
    except (OSError, ValueError, httpx.TransportError, httpx.InvalidURL) as error:
        return f"a direct connection to {url} with root-certificates {roots or 'of this system'} fails ({error})"
    return ""


# --- the bundle of an app ---------------------------------------------------------------------------------------


def copy_app(app: Path, target: Path) -> Path:
    """Copy the files that Flower may bundle to the new folder `target`, and return it.

    `flwr run` resolves the path of every file in the folder. With a virtual environment, as `make` creates one, these
    are 84,000 files and take 7.5 CPU seconds; without it, 0.1.

    Raises:
        FlowerError: there is no app, or a file cannot be read or written.
    """
    if not (app / "pyproject.toml").exists():
        raise FlowerError(
            f"{app} holds no pyproject.toml, so there is no Flower app to run; install Protosphere from its repository "
            "with `pip install -e .`."
        )
    try:
        shutil.copytree(app, target, ignore=_list_foreign)
    except OSError as error:
        raise FlowerError(
            f"the app in {app} cannot be copied to {target}, where Flower makes its bundle ({error}); let its files be "
            f"read, or make room in {target.parent}."
        ) from None
    return target


def _list_foreign(folder: str, names: list[str]) -> set[str]:
    """The entries of a folder that are never bundled: links, hidden folders, environments, files of other kinds."""
    foreign = set()
    for name in names:
        path = os.path.join(folder, name)
        is_choice = name.endswith(KINDS) or name in NAMES
        if os.path.isdir(path):
            is_environment = os.path.exists(os.path.join(path, "pyvenv.cfg"))
            is_choice = name[0] != "." and name != "__pycache__" and not is_environment
        if os.path.islink(path) or not is_choice:
            foreign.add(name)
    return foreign


def digest_of(app: Path) -> str:
    """SHA-256 of the bundle that `flwr run` makes from an app, which sites may list (`deploy/supernode.sh
    --allow-app`).

    Raises:
        FlowerError: there is no app, or a file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="protosphere-") as folder:
        return hashlib.sha256(bundle_of(copy_app(app, Path(folder, "app")))).hexdigest()


# --- how a run ended, over Flower or not ------------------------------------------------------------------------


def describe_end(status: str, details: str, lines: list[str], folder: Path | None) -> str:
    """Why a run failed: the error of our ServerApp, or else Flower's; "" if it did not fail."""
    if status == COMPLETED:
        is_whole = folder is None or (folder / "summary.json").exists()
        return "" if is_whole else f"the run ended without a summary in {folder}."
    for line in reversed(lines):
        if line.startswith(PREFIX_OF_ERRORS):
            return line.removeprefix(PREFIX_OF_ERRORS)
    return f"Flower reports the run as {status}: {details}".rstrip(" :.") + "."


def describe_stop(name: str, folder: Path | None) -> str:
    """A sentence on a run that was ended by the signal `name`.

    Args:
        folder: the run's folder; None if there is none on this machine.
    """
    last_round = 0
    if folder is not None:
        with suppress(SettingError):
            last_round = RunFolder(folder).status().get("round", 0)
    return f"stopped by {name} after round {last_round}." if last_round else f"stopped by {name}."


def report_stopped(folder: Path) -> None:
    """Write the report of a stopped run, which the run itself could no longer do."""
    # these imports take half a second, which no other run should wait for
    from protosphere.reports.report import leave_report

    if (folder / "metrics.jsonl").exists():
        leave_report(folder)
