"""`make ray-check`: two Ray nodes on this machine, and over both a run and a comparison, each once with the second
node killed in the middle; and a run that is refused, for the second node has a home of its own. Then all is stopped."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from protosphere.launch.connection import find_executable
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import Family, Interrupted, interruptible
from protosphere.launch.ray_cluster import cluster_at
from protosphere.launch.superlink import free_port

ROOT = Path(__file__).resolve().parents[1]
# counts steps of training by the node that takes them: a byte each, in a file a process
MODEL = """
import os
import sys
from pathlib import Path

import torch

STEPS = Path(__file__).parent / "steps"


class Counting(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 32)

    def forward(self, x):
        ray = sys.modules.get("ray")
        if self.training and ray is not None and ray.is_initialized():
            with (STEPS / f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}").open("ab") as file:
                file.write(b".")
        return torch.relu(self.linear(x.flatten(1)))


def counting(input_shape, num_classes, feature_dim):
    return Counting(torch.Size(input_shape).numel())
"""
SETTINGS = 'max-samples=400 feature-dim=8 device="cpu" models="{model}"'
ROUNDS, CLIENTS = 30, 6
COMPARED = ("--methods", "local,fedproto", "--seeds", "0,1", "-c", "rounds=60 clients=3")
PATIENCE = 20.0  # seconds for an end
START = 90.0  # seconds, here and below
LONGEST = 300.0
FAILED = 1


class CheckError(Exception):
    """What was seen is not what should be."""


class Check:
    """Two nodes, what they share, and the commands that use them.

    Args:
        place: a folder with a short path, for Ray's sockets.
        tell: who hears of every process that is started, as in `Family`.
    """

    def __init__(self, place: Path, tell: int):
        self.place = place
        self.home, self.other = place / "home", place / "other-home"
        self.results = place / "results"
        self._tell = tell
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.nodes: list[Family] = []
        self.commands = Family(tell)
        (place / "steps").mkdir()
        (place / "counting.py").write_text(MODEL)
        self.settings = SETTINGS.format(model=f"{place / 'counting.py'}:counting")

    # --- nodes ----------------------------------------------------------------------------------------

    def start_head(self) -> None:
        """The first node, whose end is the cluster's."""
        self._start("head", self.home, ["--head", "--port", str(self._port), "--include-dashboard", "false"])

    def start_second(self, home: Path) -> Family:
        """The second, with a home of its own or the first one's."""
        return self._start(f"node-{len(self.nodes)}", home, ["--address", self.address])

    def _start(self, name: str, home: Path, options: list[str]) -> Family:
        before = self._alive() if self.nodes else 0
        family = Family(self._tell)
        self.nodes.append(family)
        folder = self.place / name
        folder.mkdir()
        if not before:
            options = [*options, "--ray-client-server-port", str(free_port())]
        command = [find_executable("ray"), "start", *options, "--num-cpus", "1", "--temp-dir", str(folder), "--block"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"PROTOSPHERE_HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        with (folder / "start.log").open("w") as log:
            family.start(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        _until(lambda: self._alive() > before, f"{name} did not come up; see {folder / 'start.log'}", START)
        family.members()
        _say(f"{name}: 1 CPU, PROTOSPHERE_HOME={home.name}, {self._alive()} nodes alive")
        return family

    def _alive(self) -> int:
        from protosphere.core.errors import SettingError

        try:
            return len(cluster_at(self.address).nodes)
        except SettingError:
            return 0

    def at_work(self, worker: str) -> bool:
        """Whether a process of the nodes is one that Ray calls so."""
        for pid in {pid for family in self.nodes for pid in family.members()}:
            # it may be gone by now
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(worker.encode()):
                    return True
        return False

    def idle(self, worker: str) -> bool:
        """Whether none is."""
        return not self.at_work(worker)

    def forget_steps(self) -> None:
        """Count anew."""
        for file in (self.place / "steps").iterdir():
            file.unlink()

    def steps(self) -> str:
        """Steps of training by node and process since the last look; refuses what was on one node alone."""
        by_node: Counter[str] = Counter()
        for file in (self.place / "steps").iterdir():
            by_node[file.name.partition("-")[0][:8]] += file.stat().st_size
        self.forget_steps()
        if len(by_node) < 2:
            raise CheckError(f"clients trained on {len(by_node)} node: {dict(by_node)}")
        return ", ".join(f"{number} steps on node {node}" for node, number in by_node.items())

    # --- commands -------------------------------------------------------------------------------------

    def started(self, *words: str) -> "subprocess.Popen[str]":
        """`protosphere ...` over the cluster."""
        _say(f"protosphere {' '.join(words)}".replace(str(self.place), "..."))
        command = [sys.executable, "-m", "protosphere.cli.main", *words]
        environment = os.environ | {"PROTOSPHERE_HOME": str(self.home), "COLUMNS": "200"}
        return self.commands.start(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def ended(self, process: "subprocess.Popen[str]", code: int, words: str = "") -> str:
        """What it said, if it ended with that exit code and said `words`, a pattern."""
        said = process.communicate(timeout=LONGEST)[0]
        shown = [line for line in said.splitlines() if re.search(words or r"^final|^written|cells,", line)]
        for line in shown:
            print(f"   {line.replace(str(self.place), '...')}")
        if process.returncode != code or (words and not shown):
            raise CheckError(f"exit code {process.returncode}, where {code} was due, and {words!r}:\n{said}")
        return said

    def run(self, *more: str) -> "subprocess.Popen[str]":
        """A run over the cluster."""
        return self.started("run", "--flower", "--ray", self.address, "--results", str(self.results), *more)

    def compare(self, *more: str) -> "subprocess.Popen[str]":
        """A comparison over it."""
        return self.started("compare", "--ray", self.address, "--results", str(self.place / "compared"), *more)

    def newest(self, pattern: str) -> Path:
        """The newest file of that pattern."""
        return max(self.place.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def other_home(check: Check) -> None:
    """A run is refused before anything begins, by the name of host and home."""
    new = ("--clients", str(CLIENTS), "-c", f"rounds=2 {check.settings}")
    # nothing says which clients the second node gets; with as many clients as workers each has one
    check.ended(check.run(*new), FAILED, rf"it runs on \S+ with the PROTOSPHERE_HOME {check.other}, which has no token")
    if list(check.results.glob("*/settings.json")) or list(check.home.glob("clients/*")):
        raise CheckError("a run that was refused has left something")


def compared(check: Check) -> None:
    """A comparison, over nodes that share the results alone."""
    check.ended(check.compare(*COMPARED, "-c", check.settings), 0)
    print(f"   {check.steps()}")
    if left := [*check.home.glob("clients/*"), *check.other.glob("clients/*")]:
        raise CheckError(f"models were left: {left}")


def one_run(check: Check) -> list[object]:
    """A run over both nodes; its figures."""
    check.forget_steps()
    new = ("--clients", str(CLIENTS), "-c", f"rounds={ROUNDS} {check.settings}")
    check.ended(check.run(*new), 0)
    print(f"   {check.steps()}")
    return _figures(check.newest("results/*/metrics.jsonl"))


def cut_run(check: Check, second: Family, expected: list[object]) -> None:
    """The second node is killed in mid-run: the run says so and ends; on the first alone it comes to the figures of the
    one that was not cut."""
    before = set(check.results.iterdir())
    run = check.run("--clients", str(CLIENTS), "-c", f"rounds={ROUNDS} {check.settings}")

    def rounds() -> int:
        for path in set(check.results.iterdir()) - before:
            if (path / "metrics.jsonl").exists():
                return len((path / "metrics.jsonl").read_text().splitlines())
        return 0

    _until(lambda: rounds() >= 5, "the run does not begin", START)
    second.kill(PATIENCE)
    _say(f"second node killed after round {rounds()}")
    check.ended(run, FAILED, r"the process of client \d+ died in round \d+|resume: ")
    folder = check.newest("results/*/checkpoint.safetensors").parent
    done = len((folder / "metrics.jsonl").read_text().splitlines())
    if not 5 <= done < ROUNDS:
        raise CheckError(f"the run was to be cut, but has {done} rounds")
    check.ended(check.run("--resume", str(folder)), 0)
    if _figures(folder / "metrics.jsonl") != expected:
        raise CheckError("the resumed run has other figures than the one that was not cut")
    _say(f"resumed after round {done}; every figure is that of the run that was not cut")


def cut_comparison(check: Check, second: Family) -> None:
    """A cell whose node is killed is said to have failed; the others go on, and --resume runs it."""
    begun = set(check.place.glob("compared/*/cells/*"))
    comparison = check.compare(*COMPARED, "-c", check.settings)

    def in_flight() -> int:
        return sum((path.parent.parent not in begun) for path in check.place.glob("compared/*/cells/*/*/metrics.jsonl"))

    _until(lambda: in_flight() >= 2, "no two cells begin", START)
    second.kill(PATIENCE)
    _say("second node killed with two cells in flight")
    said = check.ended(comparison, FAILED, r"^failed: |cells failed; --resume")
    if "its task died" not in said:
        raise CheckError("no task was said to have died")
    (folder,) = re.findall(r"--resume (\S+) runs", said)
    check.ended(check.compare("--resume", folder), 0)
    summaries = [json.loads(path.read_text()) for path in Path(folder).glob("cells/*/*/summary.json")]
    if [summary["status"] for summary in summaries] != ["completed"] * 4:
        raise CheckError("not every cell was completed")


def stopped(check: Check) -> None:
    """Whoever stops a run or a comparison stops no cluster, and leaves nothing at work in it."""
    # one after the other: either would take all that the nodes have
    for begin, more, worker in (
        (check.run, ("--clients", str(CLIENTS)), "ray::ClientAppActor"),
        (check.compare, COMPARED, "ray::perform"),
    ):
        process = begin(*more, "-c", f"rounds=900 {check.settings}")
        _until(partial(check.at_work, worker), f"no {worker} is at work", START)
        process.terminate()
        check.ended(process, 128 + signal.SIGTERM, r"stopped by SIGTERM|stopping Flower")
        _until(partial(check.idle, worker), f"{worker} is still at work", PATIENCE)
    if len(cluster_at(check.address).nodes) != 2:
        raise CheckError("the cluster was touched")


def _figures(metrics: Path) -> list[object]:
    """All lines but for the seconds."""

    def timeless(value: object) -> object:
        if isinstance(value, dict):
            return {key: timeless(each) for key, each in value.items() if key not in ("time", "seconds")}
        return value

    return [timeless(json.loads(line)) for line in metrics.read_text().splitlines()]


def _checked(check: Check) -> None:
    check.start_head()
    second = check.start_second(check.other)
    with _part("homes that differ"):
        other_home(check)
    with _part("a comparison over both, with homes that differ"):
        compared(check)
    with _part("a comparison whose second node is killed"):
        cut_comparison(check, second)
    second = check.start_second(check.home)
    with _part("a run over both, with one home"):
        figures = one_run(check)
    with _part("a run and a comparison that are stopped"):
        stopped(check)
    with _part("a run whose second node is killed"):
        cut_run(check, second, figures)
    if str(cluster_at(check.address)).count("1 node,") != 1 or not check.nodes[0].members():
        raise CheckError("the cluster was touched")


@contextmanager
def _part(name: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"\n{name}", flush=True)
    yield
    print(f"ok, {time.monotonic() - began:.0f} s", flush=True)


def _until(seen: Callable[[], bool], problem: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not seen():
        if time.monotonic() > deadline:
            raise CheckError(problem)
        time.sleep(0.05)


def _say(words: str) -> None:
    print(f" - {words}", flush=True)


def main() -> int:
    """Check; the exit code: 0, or 1 when something was not as it should be, or 128 + n on signal n."""
    place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    code = FAILED
    with interruptible() as deafen, guarded(place) as tell:
        check = Check(place, tell)
        try:
            _checked(check)
            code = 0
        except (CheckError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
        except Interrupted as interruption:
            code = 128 + interruption.number
        finally:
            deafen()
            for family in (check.commands, *reversed(check.nodes)):
                family.stop(PATIENCE)
            left = sum(len(family.members()) for family in (check.commands, *check.nodes))
            shutil.rmtree(place, ignore_errors=True)
    print(f"\nstopped: both nodes and all that was started ({left} processes left)")
    return code or (FAILED if left else 0)


if __name__ == "__main__":
    sys.exit(main())
