"""The cost of a run besides training, in CPU seconds.

    python -m benchmarks.costs start          # from `protosphere run` to its first round, and which imports take it
    python -m benchmarks.costs bare-loop      # a round in process over a bare loop of the same steps, in turns
    python -m benchmarks.costs bare-loop --mnist PATH
    python -m benchmarks.costs many-clients --clients 200 1000 10000
    python -m benchmarks.costs deployment     # a round of three sites on this machine, and one of an empty app
    python -m benchmarks.costs workers --mnist PATH    # a round by two worker processes, and what two cores allow
    python -m benchmarks.costs trial          # a trial of a comparison besides its rounds

The bare loop trains the same clients' models in the same memory layout on the same batches: forward pass, cross-entropy
and FedProto's pull, backward pass, SGD. A round additionally computes prototypes over all training samples, evaluates
by all rules, encodes and checks messages, stores states, and aggregates.

`many-clients` is FedProto on the spiral, IID: 20,000 points per arm are partitioned, or each client gets `--points`.
Each row is a separate process; `from disk` keeps no state in memory; `of bare steps` is the bare loop of the first
clients.

`deployment` is a SuperLink and three SuperNodes, as in `make deploy-demo`, with a perceptron and one local epoch at
each site, so that little of a round is training. In the same federation an empty Flower app runs, whose clients return
the array of ten prototypes that they receive in two messages per round: the minimum for any method. CPU seconds are
those of all the sites' processes from a run's start to its end, divided by the number of its messages; they include
Flower's polling.

`workers` compares a round by one worker with a round by two, whose bits must be equal; the last column is the speed-up
of two independent processes on this machine, each with the bare loop of all clients.

`trial` is the CPU time of an additional trial of a comparison, extrapolated to zero rounds.
"""

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from flwr.app import Context, RecordDict
from torch.nn.functional import cross_entropy

from benchmarks.common import (
    CLOCK,
    CPU,
    described_parser,
    in_new_process,
    own_home,
    table_head,
    table_row,
    timed_rounds,
    where,
)
from deploy.demo_data import write_sites
from protosphere.client_app.client import Client
from protosphere.client_app.store import new_state
from protosphere.client_app.train import batches
from protosphere.core.seeds import generator, limited_threads
from protosphere.launch import processes
from protosphere.launch.flower import launch
from protosphere.launch.grid import LocalGrid
from protosphere.models.optimiser import EagerSGD
from protosphere.plans.run_config import plan
from protosphere.prototypes.losses import prototype_pull
from protosphere.record.folder import RunFolder
from tests.deployment import CONNECTION, Deployment, Site

START = 'dataset="spiral" spiral-points=200 models="tiny_perceptron" feature-dim=8 clients=4 rounds=1'
IMPORT_LINE = re.compile(r"import time:\s+\d+ \|\s+(\d+) \| (\w[\w.]*)$")  # of our own code, or inside a function
SHOWN_IMPORTS = 12
DIGITS = 'strategy="fedproto" rounds=4'
MNIST = f'{DIGITS} models="cnn2" feature-dim=512 batch-size=10 local-epochs=1'
SPIRAL = 'strategy="fedproto" dataset="spiral" partition="iid" models="tiny_perceptron" local-epochs=1 evaluate-every=1'
ARMS, ARM_POINTS = 6, 20_000  # of the spiral
SITES = 3
BARE_CLIENTS = 50  # clients whose steps alone are timed
EMPTY_PROJECT = """
[project]
name = "empty"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "empty"
[tool.flwr.app.components]
serverapp = "empty_app:server"
clientapp = "empty_app:client"
[tool.flwr.app.config]
clients = 0
rounds = 3
"""
EMPTY_APP = """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
@client.evaluate()
def answer(message, context):
    return Message(RecordDict({"payload": message.content["payload"]}), reply_to=message)

@server.main()
def main(grid, context):
    clients = context.run_config["clients"]
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.5)
    vectors = ArrayRecord({"vectors": Array(np.zeros((10, 64), np.float32))})
    for _ in range(context.run_config["rounds"]):
        began = time.monotonic()
        for kind in ("train", "evaluate"):
            messages = [Message(RecordDict({"payload": vectors}), node, kind) for node in nodes]
            assert len(list(grid.send_and_receive(messages))) == clients
        print("ROUND", time.monotonic() - began, flush=True)
"""


def start(options: argparse.Namespace) -> None:
    """Print the seconds to the first round, and the slowest imports."""
    runs = [first_round(options.set)[0] for _ in range(options.repeats)]
    print(f"to the first round's line: {median(cpu for cpu, _ in runs):.1f} CPU s, ", end="")
    print(f"{median(clock for _, clock in runs):.1f} s by the clock\n")
    errors = first_round(options.set, "-X", "importtime")[1]
    matches = [match for match in map(IMPORT_LINE.match, errors) if match]
    imports = sorted(((int(match[1]), match[2]) for match in matches), reverse=True)
    print(table_head("import, with all that it imports first", "ms"))
    for microseconds, name in imports[:SHOWN_IMPORTS]:
        print(table_row([f"`{name}`", round(microseconds / 1000)]))


def first_round(settings: str, *python_options: str) -> tuple[tuple[float, float], list[str]]:
    """CPU and wall-clock seconds to the first round's line, and the lines of stderr."""
    command = [sys.executable, *python_options, "-m", "protosphere.cli.main", "run", "-c", START, "-c", settings]
    seconds = None
    with own_home() as folder, (folder / "errors").open("w+") as errors:
        began = time.perf_counter()
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert run.stdout is not None
        for line in run.stdout:
            if seconds is None and line.startswith("round 1/"):
                seconds = process_seconds(run.pid), time.perf_counter() - began
        run.wait()
        errors.seek(0)
        error_text = errors.read()
    if seconds is None:
        raise SystemExit(f"the run came to no round: {error_text}")
    return seconds, error_text.splitlines()


def process_seconds(pid: int) -> float:
    """CPU seconds of a process and its children, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def bare_loop(options: argparse.Namespace) -> None:
    """Print a round's seconds, and their ratio to those of the bare loop."""
    tasks = {"digits, ten tiny clients": DIGITS}
    if options.mnist:
        tasks["MNIST, ten clients, cnn2, batches of 10"] = f'{MNIST} dataset="{options.mnist}"'
    print(table_head("run", "a round, CPU s", "bare loop, CPU s", "ratio"))
    for task, settings in tasks.items():
        config = plan([settings, options.set], clients=10).run_config
        pairs = []
        with own_home():
            for _ in range(options.repeats):
                _, seconds = timed_rounds(config, 10)
                pairs.append((median(seconds[:, CPU]), bare_seconds(config, 10)))
        rounds, steps = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(with_round / bare for with_round, bare in pairs)
        print(table_row([task, f"{rounds:.2f}", f"{steps:.2f}", f"{ratio:.2f}"]), flush=True)


def bare_seconds(config: Mapping[str, Any], clients: int, first: int | None = None) -> float:
    """Seconds of the bare loop over all clients, or over the first ones."""
    contexts = [
        Context(0, 0, {"partition-id": partition, "num-partitions": clients}, RecordDict(), dict(config))
        for partition in range(clients if first is None else first)
    ]
    bare_clients = [Client(context) for context in contexts]
    # one thread throughout: threads started for a model's first weights would spin during the timing
    with limited_threads(bare_clients[0].settings.threads):
        return sum(map(bare_epochs, bare_clients))


def bare_epochs(client: Client) -> float:
    """Seconds of one client's steps in a round."""
    settings, data = client.settings, client.data
    state = new_state(client.objective, client.model, data.transform.shape, client.partition, client.device)
    module, optimiser = state.module.train(), EagerSGD(state.module.parameters(), lr=settings.learning_rate)
    targets = torch.randn(data.num_classes, settings.feature_dim)
    present = torch.ones(data.num_classes, dtype=torch.bool)
    began = time.process_time()
    for epoch in range(settings.local_epochs):
        order = generator(settings.seed, client.partition, epoch)
        for index in batches(len(data.train), settings.batch_size, order, client.device):
            labels = data.train.labels[index]
            z = module.features(data.transform(data.train.inputs[index]))
            loss = cross_entropy(module.classify(z), labels) + prototype_pull(z, labels, targets, present)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return time.process_time() - began


def many_clients(options: argparse.Namespace) -> None:
    """Print the cost of a client-round by the number of clients, one process per row and repeat, in turns."""
    columns = ("clients", "states", "CPU ms a client-round", "of bare steps")
    print(table_head(*columns, "peak memory, MB", "on disk, MB", left=2))
    places = ("in memory", "on disk") if options.from_disk else ("in memory",)
    for clients in options.clients or (200, 1000):
        arm_points = options.points * clients // ARMS or ARM_POINTS
        settings = [f"{SPIRAL} spiral-points={arm_points} rounds={options.rounds}", options.set]
        runs: dict[str, list[tuple[float, ...]]] = {place: [] for place in places}
        for _, place in product(range(options.repeats), places):
            runs[place].append(in_new_process(client_round, settings, clients, place))
        for place, figures in runs.items():
            ms, steps, memory, disk = (median(column) for column in zip(*figures, strict=True))
            numbers = (f"{ms:.1f}", f"{steps:.1f}", f"{memory:,.0f}", f"{disk:,.0f}")
            print(table_row([f"{clients:,}", place, *numbers]), flush=True)


def client_round(settings: Sequence[str], clients: int, place: str) -> tuple[float, ...]:
    """Milliseconds of CPU time per client-round, and of the steps alone; MB of peak memory, and on disk."""
    memory = 0 if place == "on disk" else 1 << 20
    config = plan([*settings, f"state-memory={memory}"], clients=clients).run_config
    with own_home() as folder:
        _, seconds = timed_rounds(config, clients, LocalGrid)
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        few = min(BARE_CLIENTS, clients)
        steps = 1e3 * bare_seconds(config, clients, few) / few
    return 1e3 * median(seconds[:, CPU]) / clients, steps, peak, sum(sizes) / 1e6


def write_empty_app(folder: Path) -> None:
    """Write a Flower app whose clients return what they receive."""
    (folder / "pyproject.toml").write_text(EMPTY_PROJECT)
    (folder / "empty_app.py").write_text(EMPTY_APP)


def empty_rounds(app: Path, clients: int, rounds: int) -> list[float]:
    """Seconds of each of its rounds in a federation."""
    seconds: list[float] = []

    def note_round(line: str) -> None:
        if line.startswith("ROUND "):
            seconds.append(float(line.split()[1]))

    config = {"clients": clients, "rounds": rounds}
    outcome = launch(config, clients=clients, show=note_round, verbose=True, app=app, connection=CONNECTION)
    if not outcome.ok:
        raise SystemExit(f"the empty app failed: {outcome.message}")
    return seconds


def deployment(options: argparse.Namespace) -> None:
    """Print the cost of a round and a message, for our app and an empty one in turns, in one federation per repeat."""
    print(table_head("app", "a round, s", "a message, CPU s"))
    runs = [in_federation(options.rounds) for _ in range(options.repeats)]
    for app in ("ours", "empty"):
        columns = zip(*(figures[app] for figures in runs), strict=True)
        print(table_row([app, *(f"{median(numbers):.2f}" for numbers in columns)]))
    ratio = median(figures["ours"][0] / figures["empty"][0] for figures in runs)
    print(f"\na round of ours over one of the empty app: {ratio:.2f}")


def in_federation(rounds: int) -> dict[str, tuple[float, float]]:
    """For both apps: seconds of a round after the first, and CPU seconds of the sites' processes per message."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sites = []
        for number, root in enumerate(write_sites(folder / "data", SITES)):
            sites.append(Site(number, {"data": str(root), "model": "tiny_perceptron", "device": "cpu"}))
        federation = Deployment(folder, sites)
        (folder / "empty").mkdir()
        write_empty_app(folder / "empty")
        config = {"rounds": rounds, "local-epochs": 1, "dataset": "digits-of-three-sites", "clients": SITES}
        config["results-dir"] = str(folder / "results")
        before = dict(os.environ)
        try:
            federation.start()
            os.environ.update(federation.environment)
            cpu = [site_seconds(federation)]
            outcome = launch(config, clients=SITES, show=lambda line: None, connection=CONNECTION)
            if not outcome.ok or outcome.folder is None:
                raise SystemExit(f"the run failed: {outcome.message}")
            cpu.append(site_seconds(federation))
            empty = empty_rounds(folder / "empty", SITES, rounds)
            cpu.append(site_seconds(federation))
        finally:
            os.environ.clear()
            os.environ.update(before)
            federation.stop()
        seconds = [line["time"]["round"] for line in RunFolder(outcome.folder).lines() if line["round"]]
    # our app also asks for identities, and evaluates the untrained models
    return {
        "ours": (median(seconds[1:]), (cpu[1] - cpu[0]) / (2 * rounds + 2) / SITES),
        "empty": (median(empty[1:]), (cpu[2] - cpu[1]) / (2 * rounds) / SITES),
    }


def workers(options: argparse.Namespace) -> None:
    """Print the speed-up of two workers, and of two independent processes."""
    if not options.mnist:
        raise SystemExit("workers: name a folder of MNIST with --mnist.")
    config = plan([f'{MNIST} dataset="{options.mnist}"', options.set], clients=10).run_config
    print(table_head("one worker, s a round", "two workers, s a round", "ratio", "of two bare loops"))
    rows: list[tuple[float, ...]] = []
    for _ in range(options.repeats):
        (one, state), (two, same) = (in_new_process(round_by_workers, config, number) for number in (1, 2))
        if state != same:
            raise SystemExit("two workers made other bits than one.")
        alone = in_new_process(loops_side_by_side, config, 1)
        rows.append((one, two, one / two, 2 * alone / in_new_process(loops_side_by_side, config, 2)))
    print(table_row(f"{median(column):.2f}" for column in zip(*rows, strict=True)))


def round_by_workers(config: Mapping[str, Any], number: int) -> tuple[float, bytes]:
    """Wall-clock seconds of a round, and the server's last tensors."""
    with own_home():
        folder, seconds = timed_rounds(config, 10, workers=number)
        tensors, _ = RunFolder(folder).load_checkpoint()
        # by name: the file lists its tensors in any order
        values = [tensors[name].numpy().tobytes() for name in sorted(tensors)]
        return median(seconds[:, CLOCK]), b"".join(values)


def loops_side_by_side(config: Mapping[str, Any], number: int) -> float:
    """Seconds by the clock of the bare loop in so many processes at once."""
    with ProcessPoolExecutor(number, get_context("spawn")) as pool:
        # load PyTorch and the data beforehand
        list(pool.map(bare_seconds, [config] * number, [10] * number))
        began = time.perf_counter()
        list(pool.map(bare_seconds, [config] * number, [10] * number))
        return time.perf_counter() - began


def trial(options: argparse.Namespace) -> None:
    """Print the cost of a comparison's trial besides its rounds."""
    seconds = [further_trial(4) * 2 - further_trial(8) for _ in range(options.repeats)]
    print(f"a trial besides its rounds: {median(seconds):.2f} CPU s ({min(seconds):.2f} to {max(seconds):.2f})")


def further_trial(rounds: int) -> float:
    """CPU seconds per additional trial of a comparison."""
    few, many = (comparison_seconds(number, rounds) for number in (2, 8))
    return (many - few) / 6


def comparison_seconds(trials: int, rounds: int) -> float:
    """CPU seconds of a comparison with all its processes."""
    command = [sys.executable, "-m", "protosphere.cli.main", "compare", "--methods", "fedproto", "--jobs", "1"]
    command += ["--seeds", ",".join(map(str, range(trials))), "-c", START, "-c", f"rounds={rounds}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with own_home():
        # its watcher waits for all its descendants
        if processes.start(command, stdout=subprocess.DEVNULL).wait():
            raise SystemExit(f"the comparison failed: {shlex.join(command)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def site_seconds(federation: Deployment) -> float:
    """CPU seconds of all the sites' processes so far, including ended ones."""
    total = 0.0
    for site in federation.sites:
        for process in psutil.Process(federation.processes[site.partition].pid).children(recursive=True):
            with suppress(psutil.Error):
                # its own, then those of the children that it has waited for
                total += sum(process.cpu_times()[:4])
    return total


def main() -> None:
    """Print one of the measurements."""
    parser = described_parser(__doc__)
    figures = {"start": start, "bare-loop": bare_loop, "many-clients": many_clients}
    figures |= {"deployment": deployment, "workers": workers, "trial": trial}
    parser.add_argument("figure", choices=figures)
    parser.add_argument("--repeats", type=int, default=5, help="of which medians are printed")
    parser.add_argument("--clients", type=int, nargs="+", help="many-clients: 200 1000")
    parser.add_argument("--mnist", default="", help="bare-loop, workers: a folder of MNIST, as `dataset` takes it")
    parser.add_argument("--points", type=int, default=0, help="many-clients: of each client; 0: 20,000 an arm for all")
    parser.add_argument("--rounds", type=int, default=4, help="many-clients, deployment")
    parser.add_argument("--from-disk", action="store_true", help="many-clients: also without states in memory")
    parser.add_argument("-c", "--set", default="", help="settings, over those of the figure")
    options = parser.parse_args()
    print(f"{where()} | {options.figure}, {options.repeats} repeats {options.set}\n", flush=True)
    figures[options.figure](options)


if __name__ == "__main__":
    main()
