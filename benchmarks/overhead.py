"""What a client-round costs besides training and evaluation: message, store, data, scheduling.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --clients 200 \
        --set 'dataset="spiral" partition="iid" spiral-points=20000 models="tiny_perceptron"'

On the demo (digits, ten clients): (wall of round 2 x workers - sum of training and evaluation seconds) / clients,
by `flwr run` over Ray with two workers, and in this process with one. Target: under 50 ms. Beside them an app of Flower
whose clients send back what they get, an array of ten prototypes, as `flwr run` has it: what no method can save.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.common import own_home, where
from protosphere.launch.flower_run import launch
from protosphere.launch.grid import run_in_process
from protosphere.launch.run_config import plan
from protosphere.record.folder import RunFolder

EMPTY = {
    "pyproject.toml": """
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
""",
    "empty_app.py": """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
def train(message, context):
    return Message(RecordDict({"payload": message.content["payload"]}), reply_to=message)

@server.main()
def main(grid, context):
    clients = context.run_config["clients"]
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.5)
    vectors = ArrayRecord({"vectors": Array(np.zeros((10, 64), np.float32))})
    for _ in range(3):
        began = time.monotonic()
        messages = [Message(RecordDict({"payload": vectors}), node, "train") for node in nodes]
        assert len(list(grid.send_and_receive(messages))) == clients
        print("ROUND", time.monotonic() - began, flush=True)
""",
}


def empty(clients: int, workers: int) -> float:
    """Seconds a client in round 2 of an app that does nothing."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in EMPTY.items():
            (Path(folder) / name).write_text(text)
        outcome = launch(
            {"clients": clients},
            clients=clients,
            show=lambda line: seconds.append(float(line.split()[1])) if line.startswith("ROUND ") else None,
            verbose=True,
            app=Path(folder),
        )
    if not outcome.ok:
        raise SystemExit(f"the empty app failed: {outcome.message}")
    return seconds[1] * workers / clients


def overhead(folder: Path, workers: int, clients: int) -> float:
    """Seconds a client in round 2."""
    time = RunFolder(folder).lines()[1]["time"]
    work = sum(time["train"].values()) + sum(time["evaluate"].values())
    return (time["round"] * workers - work) / clients


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--set", default="", help="settings of ours")
    options = parser.parse_args()
    clients, workers = options.clients, os.cpu_count() or 1
    config = plan([f"rounds=3 {options.set}"], clients=clients).run_config
    found: dict[str, list[float]] = {}
    print(where(), f"| {clients} clients {options.set}")
    with own_home():
        for _ in range(options.repetitions):
            own = overhead(run_in_process(config, clients=clients, show=lambda line: None), 1, clients)
            outcome = launch(config, clients=clients, show=lambda line: None)
            if not outcome.ok or outcome.folder is None:
                raise SystemExit(f"the run failed: {outcome.message}")
            ray = overhead(outcome.folder, workers, clients)
            nothing = empty(clients, workers)
            for name, value in (
                ("ms a client in round 2, in process, 1 worker", 1000 * own),
                (f"ms by flwr run, {workers} workers", 1000 * ray),
                ("ms by flwr run, an empty app", 1000 * nothing),
                ("ours over the empty app's", ray / nothing),
            ):
                found.setdefault(name, []).append(value)
    for name, values in found.items():
        print(f"{name}: {statistics.median(values):.2f} (min {min(values):.2f}, max {max(values):.2f})")


if __name__ == "__main__":
    main()
