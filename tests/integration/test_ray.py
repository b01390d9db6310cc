"""`make ray-check`: two Ray nodes on this machine, and over both a run and a comparison, each once with the second node
killed in the middle; and a run that is refused, for the second node has a home of its own. Run by name alone, for it
takes seven minutes; the tests go on from each other."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from protosphere.core.errors import SettingError
from protosphere.launch import processes
from protosphere.launch.flower import find_executable, free_port
from protosphere.launch.ray_cluster import nodes_at
from tests.integration.watched import descendants
from tests.soak.faults.driver import wait_until

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
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
SETTINGS = 'max-samples=400 feature-dim=8 device="cpu" models="{model}:counting"'
ROUNDS, CLIENTS = 30, 6
COMPARED = ("--methods", "local,fedproto", "--seeds", "0,1", "-c", "rounds=60 clients=3")
PATIENCE, START, LONGEST = 20.0, 90.0, 300.0  # seconds for an end, a start, a run


def say(words):
    print(f" - {words}", flush=True)


class Cluster:
    """Nodes, what they share (`place`, whose path is short, for Ray's sockets), and the commands that use them."""

    def __init__(self, place):
        self.place = place
        self.home, self.other, self.results = place / "home", place / "other-home", place / "results"
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.nodes, self.commands = [], []
        self.figures = []  # of a run that was not cut
        (place / "steps").mkdir()
        (place / "counting.py").write_text(MODEL)
        self.settings = SETTINGS.format(model=place / "counting.py")

    # --- nodes ----------------------------------------------------------------------------------------

    def start(self, home):
        """A node with this home: the first one is the head, whose end is the cluster's."""
        name, before = f"node-{len(self.nodes)}" if self.nodes else "head", self.alive()
        options = ["--address", self.address]
        if not self.nodes:
            options = ["--head", "--port", str(self._port), "--include-dashboard", "false"]
            options += ["--ray-client-server-port", str(free_port())]
        folder = self.place / name
        folder.mkdir()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"PROTOSPHERE_HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        command = [find_executable("ray"), "start", *options, "--num-cpus", "1", "--temp-dir", str(folder), "--block"]
        with (folder / "start.log").open("w") as log:
            options = {"cwd": folder, "env": environment, "stdout": log, "stderr": subprocess.STDOUT}
            self.nodes.append(processes.start(command, PATIENCE, **options))
        wait_until(lambda: self.alive() > before, START, f"{name}; see {folder / 'start.log'}")
        say(f"{name}: 1 CPU, PROTOSPHERE_HOME={home.name}, {self.alive()} nodes alive")

    def kill_second(self):
        for pid in descendants(self.nodes[-1].pid).keys() - {self.nodes[-1].pid}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nodes[-1].wait(PATIENCE)

    def alive(self):
        """How many nodes are."""
        with suppress(SettingError):
            return len(nodes_at(self.address))
        return 0

    def at_work(self, worker):
        """Whether a process of the nodes is one that Ray calls so."""
        for pid in {pid for node in self.nodes for pid in descendants(node.pid)}:
            # it may be gone by now
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(worker.encode()):
                    return True
        return False

    def steps(self):
        """Steps of training by node since the last look."""
        by_node = Counter()
        for file in (self.place / "steps").iterdir():
            by_node[file.name.partition("-")[0][:8]] += file.stat().st_size
            file.unlink()
        print("   " + ", ".join(f"{number} steps on node {node}" for node, number in by_node.items()))
        return by_node

    # --- commands -------------------------------------------------------------------------------------

    def begin(self, *words):
        """`protosphere ...` over the cluster."""
        say(f"protosphere {' '.join(words)}".replace(str(self.place), "..."))
        command = [sys.executable, "-m", "protosphere.cli.main", *words]
        environment = os.environ | {"PROTOSPHERE_HOME": str(self.home), "COLUMNS": "200"}
        options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.commands.append(processes.start(command, PATIENCE, **options))
        return self.commands[-1]

    def run(self, rounds, *more):
        new = () if "--resume" in more else ("--clients", str(CLIENTS), "-c", f"rounds={rounds} {self.settings}")
        return self.begin("run", "--on", f"ray:{self.address}", "--results", str(self.results), *new, *more)

    def compare(self, *more):
        return self.begin("compare", "--on", f"ray:{self.address}", "--results", str(self.place / "compared"), *more)

    def end(self, process, code=0, words=r"^final|^written|runs,"):
        """What it said, where it ended with that exit code and said `words`, a pattern."""
        said = process.communicate(timeout=LONGEST)[0]
        shown = [line for line in said.splitlines() if re.search(words, line)]
        for line in shown:
            print(f"   {line.replace(str(self.place), '...')}")
        assert (process.returncode, bool(shown)) == (code, True), said
        return said

    def newest(self, pattern):
        """The newest file of that pattern."""
        return max(self.place.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def cluster():
    place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    made = Cluster(place)
    try:
        made.start(made.home)
        made.start(made.other)
        yield made
    finally:
        processes.stop(*made.commands, *reversed(made.nodes))
        shutil.rmtree(place, ignore_errors=True)


def test_a_run_over_homes_that_differ_is_refused_by_the_name_of_host_and_home(cluster):
    # nothing says which clients the second node gets; with as many clients as workers each has one
    words = rf"it runs on \S+ with the PROTOSPHERE_HOME {cluster.other}, which has no folder"
    cluster.end(cluster.run(2), 1, words)
    # it is found in round 1: nobody's model is kept in the other home
    assert [*cluster.other.glob("clients/*/*")] == []


def test_a_comparison_needs_no_home_that_nodes_share(cluster):
    cluster.end(cluster.compare(*COMPARED, "-c", cluster.settings))
    assert len(cluster.steps()) == 2
    assert [*cluster.home.glob("clients/*"), *cluster.other.glob("clients/*")] == [], "models were left"


def test_a_cell_whose_node_is_killed_is_said_to_have_failed_and_resume_runs_it(cluster):
    begun = set(cluster.place.glob("compared/*/trials/*"))

    def in_flight():
        begun_since = cluster.place.glob("compared/*/trials/*/*/metrics.jsonl")
        return sum(path.parent.parent not in begun for path in begun_since) >= 2

    comparison = cluster.compare(*COMPARED, "-c", cluster.settings)
    wait_until(in_flight, START, "two cells")
    cluster.kill_second()
    say("second node killed with two cells in flight")
    said = cluster.end(comparison, 1, r"^failed: |trials failed; ")
    assert "its task died" in said
    (folder,) = re.findall(r"--resume (\S+) --on", said)
    cluster.end(cluster.compare("--resume", folder))
    summaries = [json.loads(path.read_text()) for path in Path(folder).glob("trials/*/*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["completed"] * 4


def test_a_run_over_both_with_one_home(cluster, metrics):
    cluster.start(cluster.home)
    cluster.steps()
    cluster.end(cluster.run(ROUNDS))
    assert len(cluster.steps()) == 2
    cluster.figures = metrics(cluster.newest("results/*/metrics.jsonl").parent)


def test_whoever_stops_a_run_or_a_comparison_stops_no_cluster_and_leaves_nothing_at_work(cluster):
    # one after the other: either would take all that the nodes have
    for begin, worker in (
        (lambda: cluster.run(900), "ray::ClientAppActor"),
        (lambda: cluster.compare(*COMPARED, "-c", f"rounds=900 {cluster.settings}"), "ray::perform"),
    ):
        process = begin()
        wait_until(lambda worker=worker: cluster.at_work(worker), START, worker)
        process.terminate()
        cluster.end(process, 128 + signal.SIGTERM, r"stopped by SIGTERM|stopping Flower")
        wait_until(lambda worker=worker: not cluster.at_work(worker), PATIENCE, f"the end of {worker}")
    assert cluster.alive() == 2


def test_a_run_whose_node_is_killed_ends_and_goes_on_to_the_figures_of_one_that_was_not_cut(cluster, metrics):
    before = set(cluster.results.iterdir())

    def rounds():
        folders = set(cluster.results.iterdir()) - before
        return sum(len(path.read_text().splitlines()) for each in folders for path in each.glob("metrics.jsonl"))

    run = cluster.run(ROUNDS)
    wait_until(lambda: rounds() >= 5, START, "round 5")
    cluster.kill_second()
    say(f"second node killed after round {rounds()}")
    cluster.end(run, 1, r"the process of client \d+ died in round \d+|resume: ")
    folder, done = cluster.newest("results/*/checkpoint.safetensors").parent, rounds()
    assert 5 <= done < ROUNDS
    cluster.end(cluster.run(ROUNDS, "--resume", str(folder)))
    assert metrics(folder) == cluster.figures
    say(f"resumed after round {done}; every figure is that of the run that was not cut")
    assert cluster.alive() == 1
    assert cluster.nodes[0].members(), "the cluster was touched"
