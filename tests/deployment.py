"""A whole federation on this machine: the scripts of `deploy/`, as real processes on loopback, with TLS and node keys,
over gRPC (Flower 1.39) or HTTPS (1.40 and newer).

`make deploy-demo` runs it: a SuperLink and three sites, each with its own images and its own architecture, for five
rounds; then everything is stopped. Tests and benchmarks have it, too.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy import credentials
from deploy.demo_data import write_sites
from protosphere.core.flower import fleet_transport, has_succeeded, refusal
from protosphere.core.home import home
from protosphere.launch import processes
from protosphere.launch.flower import FlowerError, flower_environment, free_port, is_healthy, run_flwr
from protosphere.launch.processes import Interrupted, interruptible

ROOT = Path(__file__).resolve().parents[1]
CONNECTION = "deployment"
PATIENCE = 300.0  # seconds that a part has to begin or to answer: a busy machine takes more than one minute
STOP_PATIENCE = 60.0  # seconds that a run has for its own clean end
MODELS = ("tiny_cnn", "resnet8", "tiny_perceptron")
SETTINGS = 'rounds=5 dataset="digits-of-three-sites" start-timeout=120.0 round-timeout=120.0'


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
        environment: variables for all processes, beside those of this one.
        script_environment: variables for SuperLink and SuperNodes alone.

    Attributes:
        processes: what `processes.start` has started last, by partition; the SuperLink's is None.
    """

    def __init__(
        self,
        folder: Path,
        sites: Sequence[Site],
        environment: Mapping[str, str] | None = None,
        script_environment: Mapping[str, str] | None = None,
    ):
        self.folder = folder
        self.sites = sites
        self.home = folder / "superlink"
        self.config = folder / "config"
        self.authority = folder / "credentials" / "ca.crt"
        self.port = free_port()
        # over HTTPS both are one port; it is on loopback, so that nothing stands before it
        self.fleet = self.port if fleet_transport() == "http" else free_port()
        self.ports = [free_port() for _ in sites]
        # the scripts take this environment's Flower, whatever lies in .venv
        programs = str(Path(sys.executable).parent)
        overrides = {"PROTOSPHERE_BIN": programs, "FLWR_HOME": str(self.config), **(environment or {})}
        self.environment = flower_environment() | overrides
        self.script_environment = self.environment | dict(script_environment or {})
        self.processes: dict[int | None, subprocess.Popen[str]] = {}

    def start(self) -> None:
        """Make the credentials, start the SuperLink, register the nodes' keys, start the SuperNodes.

        Raises:
            FlowerError: a part does not start.
        """
        self.make_credentials()
        self.start_superlink()
        for site in self.sites:
            self.register(self.key(site.partition))
            self.start_node(site.partition)

    def make_credentials(self) -> None:
        """The authority, the SuperLink's certificate, a key pair for each site, and a connection to the SuperLink."""
        credentials.authority(self.authority.parent)
        credentials.superlink(self.authority.parent, ["localhost"])
        for site in self.sites:
            credentials.node(self.key(site.partition))
        self.config.mkdir()
        (self.config / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.authority))}\n"
        )

    def key(self, partition: int) -> Path:
        """A site's private key."""
        return self.folder / f"site-{partition}" / "key"

    def log(self, partition: int | None = None) -> Path:
        """Where the SuperNode of a site, or the SuperLink, says what it does."""
        return self.folder / ("superlink.log" if partition is None else f"site-{partition}.log")

    def start_superlink(self) -> None:
        """Start it, with the database that an earlier one left, and wait until it answers."""
        options: dict[str, object] = {"credentials": self.authority.parent, "state": self.home, "port": self.port}
        if fleet_transport() == "grpc":
            options["fleet"] = f"127.0.0.1:{self.fleet}"
        self._run_script("superlink.sh", options, None)
        deadline = time.monotonic() + PATIENCE
        while not is_healthy(self.port, self.authority):
            if self.processes[None].poll() is not None or time.monotonic() > deadline:
                raise FlowerError(f"the SuperLink does not answer on port {self.port}; its log is {self.log()}.")
            time.sleep(0.2)

    def register(self, key: Path) -> None:
        """Let the node of that key in."""
        public = key.with_name(key.name + ".pub")
        answer = self.flwr("supernode", "register", str(public), CONNECTION, "--format", "json")
        if not has_succeeded(answer):
            raise FlowerError(f"the key {public} was not registered: {refusal(answer) or 'no answer'}.")

    def start_node(self, partition: int) -> None:
        """Start a site's SuperNode; it goes on trying until the SuperLink is there and takes it."""
        place, site = next((place, site) for place, site in enumerate(self.sites) if site.partition == partition)
        options: dict[str, object] = {"superlink": f"localhost:{self.fleet}", "partition": partition}
        options |= {"of": len(self.sites), "ca": self.authority, "key": self.key(partition), "port": self.ports[place]}
        options |= {"state": self.folder / f"site-{partition}" / "state", **site.options}
        self._run_script("supernode.sh", options, partition)

    def stop(self) -> None:
        """End the SuperNodes and the SuperLink, and whatever came of them."""
        processes.stop(*self.processes.values())

    def flwr(self, *arguments: str) -> str:
        """What a `flwr` command prints; empty when it takes too long."""
        return run_flwr(*arguments, patience=PATIENCE, env=self.environment, cwd=self.config)

    def _run_script(self, name: str, options: Mapping[str, object], partition: int | None) -> None:
        command = [str(ROOT / "deploy" / name)]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        with self.log(partition).open("a") as out:
            self.processes[partition] = processes.start(
                command, cwd=self.folder, env=self.script_environment, stdout=out, stderr=subprocess.STDOUT
            )


def main(extra: str) -> int:
    """Run the demo with more settings; its exit code: 0, or 1 when a part failed, or 128 + n on signal n."""
    # its logs stay for whoever looks into them
    folder = Path(tempfile.mkdtemp(prefix="protosphere-demo-"))
    sites = []
    for partition, (root, model) in enumerate(zip(write_sites(folder / "data", len(MODELS)), MODELS, strict=True)):
        sites.append(Site(partition, {"data": str(root), "model": model, "device": "cpu"}))
    deployment = Deployment(folder, sites)
    arguments = ["run", "--on", f"superlink:{CONNECTION}", "-c", SETTINGS, *(["-c", extra] if extra else [])]
    arguments += ["--results", str(home().absolute() / "results")]
    run = None
    with interruptible() as deafen:
        try:
            print(f"== a SuperLink and {len(sites)} SuperNodes over {fleet_transport()}, in {folder}", flush=True)
            if fleet_transport() == "http":
                print("== on loopback; elsewhere nginx stands before the SuperLink: deploy/nginx/protosphere-gate.conf")
            deployment.start()
            print(f"== FLWR_HOME={deployment.config} protosphere {shlex.join(arguments)}", flush=True)
            command = [sys.executable, "-m", "protosphere.cli.main", *arguments]
            run = processes.start(command, STOP_PATIENCE, cwd=ROOT, env=deployment.environment)
            code = run.wait()
        except FlowerError as error:
            print(error, file=sys.stderr)
            code = 1
        except Interrupted as interruption:
            code = 128 + interruption.number
        finally:
            deafen()
            # the front door stops its run first; nothing else may end under it
            if run is not None:
                processes.stop(run)
            deployment.stop()
    print(f"== SuperLink and SuperNodes have ended; their logs and models are in {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
