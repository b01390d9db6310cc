"""Real processes with faulty clients: a deployment, the front door's runs on it, and SIGKILL for parts of it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deploy import credentials
from protosphere.launch import processes
from tests.deployment import CONNECTION, Deployment, Site
from tests.integration import watched
from tests.soak.faults.journal import Journal, generations
from tests.soak.faults.plan import Plan

ROOT = Path(__file__).resolve().parents[3]
CLIENT_APP = 'clientapp = "protosphere.flower_client:app"'
FAULTY_APP = 'clientapp = "tests.soak.faults.app:app"'
PATIENCE = 60.0  # seconds, here and below
RETRY = 4.0


def write_app(folder: Path) -> Path:
    """A Flower app like the repository's, its settings and code, but for the ClientApp."""
    project = (ROOT / "pyproject.toml").read_text()
    assert CLIENT_APP in project
    for package in tomllib.loads(project)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    faults = Path(__file__).parent
    shutil.copytree(faults, folder / faults.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    # what is excluded there is not here, and Flower refuses a pattern that matches nothing
    project = re.sub(r"(?m)^fab-exclude = .*\n", "", project.replace(CLIENT_APP, FAULTY_APP))
    (folder / "pyproject.toml").write_text(project)
    return folder


@dataclass
class Run:
    """One call of the front door, and what its user sees."""

    process: "subprocess.Popen[str]"
    output: Path

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self.output.read_text(errors="replace")

    @property
    def folder(self) -> Path | None:
        """The run's folder, once it was told."""
        found = re.search(r"(?m)^results: (.*)$", self.said)
        return Path(found[1]) if found else None

    def lines(self) -> int:
        """How many lines its metrics have."""
        metrics = self.folder / "metrics.jsonl" if self.folder else None
        return metrics.read_text().count("\n") if metrics and metrics.exists() else 0


class Federation:
    """A deployment of faulty clients that restarts what has died, as an operator's supervisor would."""

    def __init__(self, folder: Path, clients: int, plan: Plan):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.clients = clients
        self.journal = Journal(plan.folder)
        Path(plan.folder).mkdir(parents=True)
        # the run's settings name the device: a site that does loads torch to look for it
        sites = [Site(partition) for partition in range(clients)]
        # two cores serve them all
        environment = {"OMP_NUM_THREADS": "1", "PROTOSPHERE_HOME": str(folder / "home"), **plan.variable()}
        self.deployment = Deployment(folder / "deployment", sites, environment)
        self.fronts: list[subprocess.Popen[str]] = []
        self._app = write_app(folder / "app")
        self._started = dict.fromkeys(range(clients), 0.0)
        self._runs = 0

    def start(self) -> None:
        """As `Deployment.start`."""
        self.deployment.start()

    def renew(self, partition: int) -> None:
        """Start a SuperNode at once that was killed, with another key: the old one is refused until it has missed its
        heartbeats."""
        key = self.deployment.key(partition)
        for path in (key, key.with_name("key.pub")):
            path.unlink()
        credentials.node(key)
        self.deployment.register(key)
        self.deployment.start_node(partition)

    def run(self, *words: str) -> Run:
        """Start `protosphere run --on superlink:NAME`."""
        self._runs += 1
        output = self.folder / f"run-{self._runs}.txt"
        command = [sys.executable, "-m", "tests.soak.faults.front_door", str(self._app), "run"]
        with output.open("w") as stream:
            process = processes.start(
                [*command, "--on", f"superlink:{CONNECTION}", *words],
                PATIENCE,
                cwd=ROOT,
                env=self.deployment.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self.fronts.append(process)
        return Run(process, output)

    def supervise(self) -> None:
        """Start every SuperNode that is not there, now and then: a killed one's key is refused for up to a minute.

        As a service manager would, end what a refused one leaves first: its SuperExec looks for it for ever.
        """
        for partition, started in self._started.items():
            if time.monotonic() - started > RETRY and not self.apps("supernode", partition):
                watched.kill(self.deployment, partition)
                self.deployment.start_node(partition)
                self._started[partition] = time.monotonic()

    def apps(self, name: str, partition: int | None = None) -> list[int]:
        """The processes of a site, or of the SuperLink, with that in their command line, or of that name."""
        found = []
        for pid in watched.members(self.deployment, partition):
            with suppress(OSError):
                process = Path(f"/proc/{pid}")
                if name.encode() in (process / "cmdline").read_bytes() + (process / "comm").read_bytes():
                    found.append(pid)
        return found

    def stores(self, run: str) -> dict[int, dict[int, str]]:
        """Partition -> what its store holds of a run."""
        return {p: generations(home / "clients" / run / str(p)) for p, home in self.homes().items() if p >= 0}

    def homes(self) -> dict[int, Path]:
        """Partition -> the site's PROTOSPHERE_HOME; -1 -> the SuperLink's."""
        sites = {p: self.deployment.folder / f"site-{p}" / "state" for p in range(self.clients)}
        return {-1: self.deployment.home, **sites}


@contextmanager
def deployed(folder: Path, clients: int, plan: Plan) -> Iterator[Federation]:
    """A federation that runs inside, and of which nothing lives on afterwards."""
    federation = Federation(folder, clients, plan)
    try:
        federation.start()
        yield federation
    finally:
        processes.stop(*federation.fronts)
        federation.deployment.stop()
        left = watched.everybody(federation.deployment)
    assert not left


def wait_until(true: Callable[[], object], patience: float, what: str) -> None:
    """Wait for something that is sure to come.

    Raises:
        AssertionError: it has not come.
    """
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"waited {patience:g} s for {what}"
        time.sleep(0.1)


def kill(pid: int) -> None:
    """SIGKILL, to one process alone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
