"""A whole federation on this machine: the scripts of `deploy/`, as real processes on loopback, with TLS and node
authentication, over gRPC or HTTPS as the Flower that is installed has it. For the deployment demo and tests."""

import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from protosphere.core.flower import fleet_transport, online_nodes, refusal, registered_node
from protosphere.launch.connection import FlowerError, find_executable, flower_environment
from protosphere.launch.processes import Family
from protosphere.launch.superlink import free_port

ROOT = Path(__file__).resolve().parents[1]
CONNECTION = "deployment"
START_PATIENCE = 60.0  # seconds, here and below
STOP_PATIENCE = 10.0


@dataclass(frozen=True)
class Site:
    """One client's machine.

    Attributes:
        options: of deploy/supernode.sh, such as {"data": "/rows", "model": "resnet18", "device": "cpu"}.
    """

    partition: int
    options: Mapping[str, str] = field(default_factory=dict)


class Deployment:
    """One SuperLink and its SuperNodes, each a process with a folder of its own.

    Args:
        folder: credentials, states and logs come here; `config/` is a FLWR_HOME whose connection `deployment` is this
            SuperLink.
        sites: the clients; their SuperNodes' ports are `ports`.
        tell: who hears of every process that is started, as in `Family`.
        environment: variables for all processes, beside those of this one.
    """

    def __init__(
        self,
        folder: Path,
        sites: Sequence[Site],
        tell: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ):
        self.folder = folder
        self.sites = sites
        self.home = folder / "superlink"
        self.config = folder / "config"
        self.port = free_port()
        # over HTTPS both are one port; it is on loopback, so that nothing stands before it
        self.fleet = self.port if fleet_transport() == "http" else free_port()
        self.ports = [free_port() for _ in sites]
        self._family = Family(tell)
        self._tell = tell
        # the scripts take this environment's Flower, whatever lies in .venv
        programs = str(Path(sys.executable).parent)
        overrides = {"PROTOSPHERE_BIN": programs, "FLWR_HOME": str(self.config), **(environment or {})}
        self.environment = flower_environment() | overrides
        self._superlink: Family | None = None
        self._nodes: dict[int, Family] = {}
        self._ids: dict[int, int] = {}

    def start(self) -> None:
        """Make the credentials, start the SuperLink, register the nodes' keys, start the SuperNodes.

        Raises:
            FlowerError: a part does not start; one sentence with its last line.
        """
        self.make_credentials()
        self.start_superlink()
        for site in self.sites:
            self._ids[site.partition] = self.register(self.key(site.partition))
            self.start_node(site.partition)

    def make_credentials(self) -> None:
        """The authority, the SuperLink's certificate, a key pair for each site; what is there already is kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        credentials = self.folder / "credentials"
        if not (credentials / "ca.crt").exists():
            self._credentials("authority", credentials)
            self._credentials("superlink", credentials, "localhost")
        for site in self.sites:
            if not self.key(site.partition).exists():
                self._credentials("node", self.key(site.partition))
        self.config.mkdir(exist_ok=True)
        (self.config / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.authority))}\n"
        )

    @property
    def authority(self) -> Path:
        """The certificate that every machine needs."""
        return self.folder / "credentials" / "ca.crt"

    def key(self, partition: int) -> Path:
        """A site's private key."""
        return self.folder / f"site-{partition}" / "key"

    def log(self, partition: int | None = None) -> Path:
        """Where the SuperNode of a site, or the SuperLink, says what it does."""
        return self.folder / ("superlink.log" if partition is None else f"site-{partition}.log")

    def start_superlink(self) -> None:
        """Start it, with the database that an earlier one left, and wait until it answers."""
        options: dict[str, object] = {"credentials": self.folder / "credentials", "state": self.home}
        options |= {"host": "127.0.0.1", "port": str(self.port)}
        if fleet_transport() == "grpc":
            options["fleet"] = f"127.0.0.1:{self.fleet}"
        self._superlink = self._run_script("superlink.sh", options, self.log())
        trust = ssl.create_default_context(cafile=str(self.authority))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        deadline = time.monotonic() + START_PATIENCE
        while True:
            with suppress(OSError), opener.open(f"https://127.0.0.1:{self.port}/health", timeout=5):
                return
            if not self._superlink.members() or time.monotonic() > deadline:
                raise FlowerError(f"the SuperLink does not answer on port {self.port}; {self._last_line(None)}.")
            time.sleep(0.2)

    def register(self, key: Path) -> int:
        """Let the node of that key in; its node id."""
        public = key.with_name(key.name + ".pub")
        answer = self.flwr("supernode", "register", str(public), CONNECTION, "--format", "json")
        node = registered_node(answer)
        if node is not None:
            return node
        raise FlowerError(f"the key {public} was not registered: {refusal(answer) or answer.strip()}.")

    def start_node(self, partition: int) -> None:
        """Start a site's SuperNode; it goes on trying until the SuperLink is there and takes it."""
        site = self._site(partition)
        options: dict[str, object] = {
            "ca": self.authority,
            "key": self.key(partition),
            "port": str(self.ports[self.sites.index(site)]),
        }
        options |= {"superlink": f"localhost:{self.fleet}", "state": self.folder / f"site-{partition}" / "state"}
        options |= {"partition": str(partition), "of": str(len(self.sites)), **site.options}
        self._nodes[partition] = self._run_script("supernode.sh", options, self.log(partition))

    def renew_node(self, partition: int) -> None:
        """End a site's SuperNode and start it at once, with a new key: the SuperLink refuses the old one until it has
        missed its heartbeats.

        Raises:
            FlowerError: the new key is not registered.
        """
        self.kill(partition)
        self.flwr("supernode", "unregister", str(self._ids[partition]), CONNECTION)
        key = self.key(partition)
        for path in (key, key.with_name(key.name + ".pub")):
            path.unlink()
        self.make_credentials()
        self._ids[partition] = self.register(key)
        self.start_node(partition)

    def alive(self, partition: int | None = None) -> set[int]:
        """Ids of the processes of a site, or of the SuperLink."""
        family = self._superlink if partition is None else self._nodes.get(partition)
        return family.members() if family else set()

    def members(self) -> set[int]:
        """Ids of all processes that live."""
        return set().union(*(family.members() for family in self._families()))

    def kill(self, partition: int | None = None) -> None:
        """End a site's SuperNode, or the SuperLink, and all that came of it, by SIGKILL."""
        family = self._superlink if partition is None else self._nodes.get(partition)
        if family:
            family.kill(STOP_PATIENCE)

    def online(self) -> int:
        """How many SuperNodes the SuperLink hears."""
        answer = self.flwr("supernode", "list", CONNECTION, "--format", "json")
        return online_nodes(answer)

    def stop(self) -> None:
        """End the SuperNodes, then the SuperLink, and whatever came of them."""
        for family in self._nodes.values():
            family.signal(signal.SIGTERM)
        for family in self._families():
            family.stop(STOP_PATIENCE)

    def _families(self) -> list[Family]:
        return [*self._nodes.values(), *([self._superlink] if self._superlink else []), self._family]

    def flwr(self, *arguments: str) -> str:
        """What a `flwr` command prints.

        Raises:
            FlowerError: it does not come to an end.
        """
        command = self._family.start(
            [find_executable("flwr"), *arguments],
            env=self.environment,
            cwd=self.config,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            return command.communicate(timeout=START_PATIENCE)[0]
        except subprocess.TimeoutExpired:
            command.kill()
            raise FlowerError(
                f"`flwr {' '.join(arguments)}` has not ended within {START_PATIENCE:g} s; {self._last_line(None)}."
            ) from None

    def _site(self, partition: int) -> Site:
        return next(site for site in self.sites if site.partition == partition)

    def _credentials(self, *arguments: object) -> None:
        command = [sys.executable, str(ROOT / "deploy" / "credentials.py"), *map(str, arguments)]
        process = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if process.returncode:
            raise FlowerError(f"no credentials could be made: {process.stderr.strip()}")

    def _run_script(self, name: str, options: Mapping[str, object], log: Path) -> Family:
        family = Family(self._tell)
        arguments = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        with log.open("a") as out:
            family.start(
                [str(ROOT / "deploy" / name), *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return family

    def _last_line(self, partition: int | None) -> str:
        last = self.log(partition).read_text("utf-8", errors="replace").strip().rpartition("\n")[2]
        return f"its last line is: {last or 'none'}"
