"""A SuperLink of our own in simulation mode, and the `flwr` commands that talk to it."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from experiments.processes import Family
from federation.settings import Scalar, home

STARTED = re.compile(r"Successfully started run (\d+)")
CONNECTION = "sim"
LOG = "superlink.log"
START_PATIENCE = 60.0  # seconds, here and below
STATUS_PATIENCE = 30.0
STOP_PATIENCE = 10.0


class FlowerError(RuntimeError):
    """Flower could not be started or did not answer; the message is one sentence for a person."""


class SuperLink:
    """A SuperLink in its own folder: own FLWR_HOME, own port, an empty working directory, own Ray session.

    The working directory matters: Ray's workers import from it before they look into the app.

    Args:
        scratch: its folder.
        tell: who hears of every process that is started, as in `Family`.
    """

    def __init__(self, scratch: Path, tell: int = subprocess.DEVNULL):
        self._scratch = scratch
        self._family = Family(tell)
        self._process: subprocess.Popen[str] | None = None
        self._run_id = ""
        self._finished = False
        self._environment: dict[str, str] = {}

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            FlowerError: it is not installed, ended at once, or does not answer.
        """
        executable = find_executable("flower-superlink")
        port = _free_port()
        for name in ("home", "cwd"):
            (self._scratch / name).mkdir()
        (self._scratch / "home" / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self._environment = _environment(self._scratch)
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        with (self._scratch / LOG).open("w") as log:
            self._process = self._family.start(
                [executable, *options, "--disable-runtime-dependency-installation"],
                cwd=self._scratch / "cwd",
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_PATIENCE
        while not _healthy(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                ended = self._process.returncode
                how = f"ended with exit code {ended}" if ended is not None else "does not answer"
                last = self.read_log(self._scratch).strip().rpartition("\n")[2]
                raise FlowerError(f"Flower's SuperLink {how} on port {port}; its last line is: {last or 'none'}.")
            time.sleep(0.1)
        # its SuperExec leads a session of its own, to be known before the SuperLink could vanish
        self._family.members()

    def run(
        self,
        app: Path,
        run_config: Mapping[str, Scalar],
        clients: int,
        cpus_per_client: int,
        gpus_per_client: float,
        hear: Callable[[str], None],
    ) -> None:
        """Submit the app and pass on its log, line by line, until the run has ended.

        Raises:
            FlowerError: the run was refused, in Flower's words.
        """
        settings = self._scratch / "settings.toml"
        settings.write_text(as_toml(run_config), encoding="utf-8")
        resources = f"client-resources-num-cpus={cpus_per_client} client-resources-num-gpus={float(gpus_per_client)}"
        options = ["--stream", "--federation-config", f"num-supernodes={clients} {resources}", "-c", str(settings)]
        client = self._family.start(
            [find_executable("flwr"), "run", str(app), CONNECTION, *options],
            cwd=self._scratch / "cwd",
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        framed = []
        assert client.stdout is not None
        for line in client.stdout:
            hear(line)
            if not self._run_id and (found := STARTED.search(line)):
                self._run_id = found[1]
            if line.startswith("│"):
                framed.append(line.strip("│ \n"))
        client.wait()
        if not self._run_id:
            reason = (
                " ".join(filter(None, framed)).rstrip(".") or f"`flwr run` ended with exit code {client.returncode}"
            )
            raise FlowerError(f"Flower did not start the run: {reason}.")

    def status(self) -> tuple[str, str]:
        """The run's final status, such as `finished:failed`, and what Flower says about it (may be empty).

        Raises:
            FlowerError: the SuperLink does not answer, or the run has not ended.
        """
        deadline = time.monotonic() + STATUS_PATIENCE
        status = "unknown"
        while time.monotonic() < deadline:
            command = ["ls", CONNECTION, "--run-id", self._run_id, "--format", "json"]
            answer = self._flwr(command, STATUS_PATIENCE)
            with suppress(ValueError, KeyError, IndexError):
                run = json.loads(answer)["runs"][0]
                status, details = run["status"], run["status-details"]
                if status.startswith("finished"):
                    self._finished = True
                    return status, "" if details == "N/A" else details
            if self._process is not None and self._process.poll() is not None:
                raise FlowerError(
                    f"Flower's SuperLink ended with exit code {self._process.returncode} in the middle of the run."
                )
            time.sleep(0.5)
        raise FlowerError(f"the log of the run ended, but Flower still calls it {status}.")

    def stop(self) -> None:
        """Stop the run if it is still on, then the SuperLink, then whatever came of it."""
        running = self._process is not None and self._process.poll() is None
        if running and self._run_id and not self._finished:
            self._flwr(["stop", self._run_id, CONNECTION], STOP_PATIENCE)
        # Ray's daemons are its grandchildren: remember them before their parents go
        self._family.members()
        if self._process is not None and running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_PATIENCE)
        self._family.stop(STOP_PATIENCE)

    def _flwr(self, arguments: list[str], patience: float) -> str:
        """What `flwr` prints; empty when it fails or takes too long."""
        command = self._family.start(
            [find_executable("flwr"), *arguments],
            cwd=self._scratch / "cwd",
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            return command.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            command.kill()
            return ""

    @staticmethod
    def read_log(scratch: Path) -> str:
        """All that the SuperLink of that folder has said."""
        log = scratch / LOG
        return log.read_text("utf-8", errors="replace") if log.exists() else ""


def find_executable(name: str) -> str:
    """The path of a command of Flower's: beside this Python (its environment need not be active), or on PATH.

    Raises:
        FlowerError: there is none.
    """
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name)
    if not found:
        raise FlowerError(f"`{name}` is neither beside {sys.executable} nor on PATH; install Protosphere with pip.")
    return found


def as_toml(run_config: Mapping[str, Scalar]) -> str:
    """Settings as a TOML document; the dots of a name stand for tables, as Flower reads them."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in run_config.items())


def _key(name: str) -> str:
    return ".".join(_value(part) for part in name.split("."))


def _value(value: Scalar) -> str:
    # JSON's forms are TOML's but for the one control character that JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _environment(scratch: Path) -> dict[str, str]:
    """What Flower and Ray get: no installation, no telemetry, no proxy to ourselves, nobody else's Ray cluster."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    direct = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1")))
    beside = str(Path(sys.executable).parent)
    return environment | {
        "FLWR_HOME": str(scratch / "home"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # also where Ray would look for a running cluster to join
        "RAY_TMPDIR": str(scratch),
        "PROTOSPHERE_HOME": str(home().absolute()),
        # the SuperLink finds `flower-superexec` by its name
        "PATH": os.pathsep.join(filter(None, (beside, os.environ.get("PATH")))),
        # `flwr` frames its refusals in a box as wide as this, and breaks paths that do not fit
        "COLUMNS": "500",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
