"""A whole federation on this machine: the scripts of `deploy/`, as real processes on loopback, with TLS and node keys,
over gRPC (Flower 1.39) or HTTPS (1.40 and newer).

`make deploy-demo` runs it: a SuperLink and three sites, each with its own images and its own architecture, for five
rounds; then everything is stopped. Tests and benchmarks have it, too.
"""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from PIL import Image
from sklearn.datasets import load_digits

from deploy import credentials
from protosphere.core.flower import fleet_transport, refusal, registered_node
from protosphere.core.home import home
from protosphere.launch import processes
from protosphere.launch.flower import FlowerError, flower_environment, free_port, is_healthy, run_flwr
from protosphere.launch.processes import Interrupted, descendants, interruptible

ROOT = Path(__file__).resolve().parents[1]
CONNECTION = "deployment"
PATIENCE = 60.0  # seconds that a part has to begin or to answer
MODELS = ("tiny_cnn", "resnet8", "tiny_perceptron")
SETTINGS = 'rounds=5 dataset="digits-of-three-sites" start-timeout=120.0 round-timeout=120.0'
SKEW = 1.0  # Dirichlet concentration: all sites hold most classes, in different numbers


def write_sites(folder: Path, sites: int = 3, seed: int = 0) -> list[Path]:
    """Deal scikit-learn's 1,797 digits to `sites` folders: `site-<i>/train/<class>/*.png` and `site-<i>/classes.txt`.

    Every image goes to one site; of each class, shares are drawn from a symmetric Dirichlet distribution.

    Returns:
        The sites' folders.
    """
    digits = load_digits()
    generator = np.random.default_rng(seed)
    roots = [folder / f"site-{site}" for site in range(sites)]
    for root in roots:
        root.mkdir(parents=True, exist_ok=True)
        (root / "classes.txt").write_text("".join(f"{name}\n" for name in digits.target_names))
    for label, name in enumerate(digits.target_names):
        rows = generator.permutation(np.flatnonzero(digits.target == label))
        cuts = np.cumsum(generator.dirichlet([SKEW] * sites))[:-1]
        for root, site_rows in zip(roots, np.split(rows, (cuts * len(rows)).astype(int)), strict=True):
            for row in site_rows:
                target = root / "train" / str(name) / f"{row:04d}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                # 0 to 16 in the data set
                Image.fromarray(np.round(digits.images[row] * (255 / 16)).astype(np.uint8)).save(target)
    return roots


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
    """

    def __init__(self, folder: Path, sites: Sequence[Site], environment: Mapping[str, str] | None = None):
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
        # by partition; the SuperLink's is None
        self._processes: dict[int | None, subprocess.Popen[str]] = {}
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
        self.config.mkdir(parents=True, exist_ok=True)
        # where they lie it says for each, and we once
        with redirect_stdout(io.StringIO()):
            if not self.authority.exists():
                credentials.authority(self.authority.parent)
                credentials.superlink(self.authority.parent, ["localhost"])
            for site in self.sites:
                if not self.key(site.partition).exists():
                    credentials.node(self.key(site.partition))
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
        options: dict[str, object] = {"credentials": self.authority.parent, "state": self.home}
        options |= {"host": "127.0.0.1", "port": self.port}
        if fleet_transport() == "grpc":
            options["fleet"] = f"127.0.0.1:{self.fleet}"
        process = self._run_script("superlink.sh", options, None)
        deadline = time.monotonic() + PATIENCE
        while not is_healthy(self.port, self.authority):
            if process.poll() is not None or time.monotonic() > deadline:
                raise FlowerError(f"the SuperLink does not answer on port {self.port}; {self._last_line()}.")
            time.sleep(0.2)

    def register(self, key: Path) -> int:
        """Let the node of that key in; its node id."""
        public = key.with_name(key.name + ".pub")
        answer = self.flwr("supernode", "register", str(public), CONNECTION, "--format", "json")
        node = registered_node(answer)
        if node is None:
            raise FlowerError(f"the key {public} was not registered: {refusal(answer) or self._last_line()}.")
        return node

    def start_node(self, partition: int) -> None:
        """Start a site's SuperNode; it goes on trying until the SuperLink is there and takes it."""
        place, site = next((place, site) for place, site in enumerate(self.sites) if site.partition == partition)
        options: dict[str, object] = {"superlink": f"localhost:{self.fleet}", "partition": partition}
        options |= {"of": len(self.sites), "ca": self.authority, "key": self.key(partition), "port": self.ports[place]}
        options |= {"state": self.folder / f"site-{partition}" / "state", **site.options}
        self._run_script("supernode.sh", options, partition)

    def renew_node(self, partition: int) -> None:
        """End a site's SuperNode and start it at once, with a new key: the SuperLink refuses the old one until it has
        missed its heartbeats.

        Raises:
            FlowerError: the new key is not registered.
        """
        self.kill(partition)
        self.flwr("supernode", "unregister", str(self._ids[partition]), CONNECTION)
        self.key(partition).unlink()
        self.key(partition).with_name("key.pub").unlink()
        self.make_credentials()
        self._ids[partition] = self.register(self.key(partition))
        self.start_node(partition)

    def alive(self, partition: int | None = None) -> set[int]:
        """Ids of the processes of a site, or of the SuperLink."""
        process = self._processes.get(partition)
        return set(descendants(process.pid)) if process else set()

    def members(self) -> set[int]:
        """Ids of all processes that live."""
        return set().union(*map(self.alive, self._processes))

    def kill(self, partition: int | None = None) -> None:
        """End a site's SuperNode, or the SuperLink, and all that came of it, by SIGKILL."""
        while alive := self.alive(partition):
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        if partition in self._processes:
            self._processes[partition].wait()

    def stop(self) -> None:
        """End the SuperNodes and the SuperLink, and whatever came of them."""
        processes.stop(*self._processes.values())

    def flwr(self, *arguments: str) -> str:
        """What a `flwr` command prints; empty when it takes too long."""
        return run_flwr(*arguments, patience=PATIENCE, env=self.environment, cwd=self.config)

    def _run_script(self, name: str, options: Mapping[str, object], partition: int | None) -> "subprocess.Popen[str]":
        command = [str(ROOT / "deploy" / name)]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        with self.log(partition).open("a") as out:
            process = processes.start(
                command, cwd=self.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        self._processes[partition] = process
        return process

    def _last_line(self) -> str:
        last = self.log().read_text("utf-8", errors="replace").strip().rpartition("\n")[2]
        return f"its last line is: {last or 'none'}"


def main(extra: str) -> int:
    """Run the demo with more settings; its exit code: 0, or 1 when a part failed, or 128 + n on signal n."""
    folder = home().absolute() / "deploy-demo"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock", timeout=0):
            return _run_demo(folder, extra)
    except Timeout:
        print(f"another deployment demo is running in {folder}; wait for its end.", file=sys.stderr)
    except OSError as error:
        print(f"the demo cannot use {folder} ({error}); set PROTOSPHERE_HOME to another folder.", file=sys.stderr)
    return 1


def _run_demo(folder: Path, extra: str) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    code = 1
    with interruptible() as deafen:
        roots = write_sites(folder / "data", len(MODELS))
        sites = []
        for partition, (root, model) in enumerate(zip(roots, MODELS, strict=True)):
            sites.append(Site(partition, {"data": str(root), "model": model, "device": "cpu"}))
        deployment = Deployment(folder, sites)
        run = None
        try:
            over = {"grpc": "gRPC", "http": "HTTPS"}[fleet_transport()]
            _say(f"credentials, a SuperLink and {len(sites)} SuperNodes over {over}, all of it in {folder}")
            if over == "HTTPS":
                _say("on loopback; elsewhere nginx stands before the SuperLink: deploy/nginx/protosphere-gate.conf")
            deployment.start()
            run = _start_run(deployment, extra)
            code = run.wait()
        except FlowerError as error:
            print(f"{error}\nlogs: {folder}", file=sys.stderr)
        except Interrupted as interruption:
            _say(f"{interruption.name}: stopping")
            code = 128 + interruption.number
        finally:
            deafen()
            # the front door stops its run first; nothing else may end under it
            if run is not None:
                processes.stop(run)
            deployment.stop()
    _say("stopped: SuperLink and SuperNodes, and all that they started")
    if code == 0:
        _show_predict(folder)
    return code


def _start_run(deployment: Deployment, extra: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "protosphere.cli.main", "run", "--on", f"superlink:{CONNECTION}"]
    settings_texts = [SETTINGS, *([extra] if extra else [])]
    arguments = [word for text in settings_texts for word in ("-c", text)] + [
        "--results",
        str(home().absolute() / "results"),
    ]
    _say(f"FLWR_HOME={deployment.config} protosphere {shlex.join([*command[3:], *arguments])}")
    return processes.start([*command, *arguments], PATIENCE, cwd=ROOT, env=deployment.environment)


def _show_predict(folder: Path) -> None:
    """How a site uses what it has trained."""
    with suppress(StopIteration):
        state = next((folder / "site-0" / "state" / "clients").glob("*/0"))
        image = next((folder / "data" / "site-0" / "train").rglob("*.png"))
        _say(f"a site uses its model:\n  protosphere predict --state {state} {image}")


def _say(words: str) -> None:
    # whoever reads may have gone
    with suppress(OSError):
        print(f"== {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
