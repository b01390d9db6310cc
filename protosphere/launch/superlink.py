"""A SuperLink of our own in simulation mode."""

import http.client
import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from protosphere.core.flower import NO_INSTALLATION
from protosphere.core.home import home
from protosphere.launch.connection import STOP_PATIENCE, Connection, FlowerError, find_executable, flower_environment

CONNECTION = "sim"
LOG = "superlink.log"
START_PATIENCE = 60.0  # seconds


class SuperLink(Connection):
    """A SuperLink in its own folder: own FLWR_HOME, own port, an empty working directory, own Ray session.

    The working directory matters: Ray's workers import from it before they look into the app.

    Args:
        ray: the address of a cluster that has the clients, and is left as it is; empty for a Ray of its own.
    """

    def __init__(self, scratch: Path, tell: int = subprocess.DEVNULL, ray: str = ""):
        super().__init__(scratch, tell, CONNECTION)
        self._ray = ray
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            FlowerError: it is not installed, ended at once, or does not answer.
        """
        executable = find_executable("flower-superlink")
        port = free_port()
        for name in ("home", "cwd"):
            (self._scratch / name).mkdir()
        (self._scratch / "home" / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self._environment = _environment(self._scratch, self._ray)
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
        while not _is_healthy(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                ended = self._process.returncode
                how = f"ended with exit code {ended}"
                if ended is None:
                    how = f"has not answered for {START_PATIENCE:.0f} s ({describe_load()})"
                last = self.read_log(self._scratch).strip().rpartition("\n")[2]
                raise FlowerError(f"Flower's SuperLink {how} on port {port}; its last line is: {last or 'none'}.")
            time.sleep(0.1)
        # its SuperExec leads a session of its own, to be known before the SuperLink could vanish
        self._family.members()

    def stop(self) -> str:
        """Stop the run if it is still on, then the SuperLink, then whatever came of it; nothing goes on."""
        running = self._process is not None and self._process.poll() is None
        if running:
            self._stop_run(STOP_PATIENCE)
        # Ray's daemons are its grandchildren: remember them before their parents go
        self._family.members()
        if self._process is not None and running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_PATIENCE)
        self._family.stop(STOP_PATIENCE)
        return ""

    def _refuse_ended(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise FlowerError(
                f"Flower's SuperLink ended with exit code {self._process.returncode} in the middle of the run."
            )

    def _describe_lost(self, status: str) -> str:
        return f"Flower's SuperLink does not say how the run ended: {status} is its last word; the log says more."

    @staticmethod
    def read_log(scratch: Path) -> str:
        """All that the SuperLink of that folder has said."""
        log = scratch / LOG
        return log.read_text("utf-8", errors="replace") if log.exists() else ""


def _environment(scratch: Path, ray: str = "") -> dict[str, str]:
    """What Flower and Ray get: no installation, no telemetry, no Ray cluster but `ray`'s."""
    environment = flower_environment() | {
        "FLWR_HOME": str(scratch / "home"),
        **NO_INSTALLATION,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PROTOSPHERE_HOME": str(home().absolute()),
    }
    environment.pop("RAY_ADDRESS", None)
    # the second is also where Ray would look for a running cluster to join
    return environment | ({"RAY_ADDRESS": ray} if ray else {"RAY_TMPDIR": str(scratch)})


def describe_load() -> str:
    """How busy this machine is, for errors that come of it."""
    return f"its load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def free_port() -> int:
    """A TCP port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
