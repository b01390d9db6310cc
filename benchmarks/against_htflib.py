"""FedProto on HtFLlib's own MNIST partition, by HtFLlib and by us: seconds of the processor, and by the clock, a round.

    git clone https://github.com/TsingZ0/HtFLlib
    python -m benchmarks.against_htflib --htflib HtFLlib
    python -m benchmarks.against_htflib --htflib HtFLlib --share 1 --device cuda

Twenty clients with the rows that its files give them (a share of each, the first), its FedAvgCNN at d = 512, batches of
10, one epoch, one thread; each evaluates in every round. A round is measured from the second on; runs alternate, and
each is a process of its own. Ours measures prototypes by a pass over the rows after training and evaluates by all
rules; HtFLlib takes the running mean of training and evaluates by one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import nn

import protosphere
from benchmarks.common import CLOCK, CPU, described_parser, in_new_process, table_head, table_row, where

CLIENTS = 20
SETTINGS: dict[str, Any] = {
    "split": "official",
    "partition": "column",
    "partition_column": "client",
    "feature_dim": 512,
    "feature_activation": "relu",
    "batch_size": 10,
    "local_epochs": 1,
    "momentum": 0.0,
    "prototype_weight": 1.0,
    "validation_share": 0.0,
    "min_samples": 1,
    "report": False,
}
# run in HtFLlib's `system` folder: its server with the one algorithm alone, since the others want more packages
THEIRS = """
import argparse, json, sys, time, types
# it writes its results with h5py, which nothing here needs
sys.modules.setdefault("h5py", types.ModuleType("h5py"))
import functools, torch
# of its own files, written a moment ago: it is of a time before `weights_only`
torch.load = functools.partial(torch.load, weights_only=False)
from flcore.trainmodel.models import *
import flcore.clients.clientbase as clientbase, flcore.servers.serverbase as serverbase
from flcore.servers.serverproto import FedProto
task = json.loads(sys.argv[1])
torch.set_num_threads(1)
all_rows = clientbase.read_client_data
def first_rows(*args, **kwargs):
    rows = all_rows(*args, **kwargs)
    return rows[: max(1, int(len(rows) * task["share"]))]
clientbase.read_client_data = serverbase.read_client_data = first_rows
args = argparse.Namespace(device=task["device"], dataset="mnist", num_classes=10, batch_size=10,
    local_learning_rate=0.01, global_rounds=task["rounds"] - 1, local_epochs=1, join_ratio=1.0,
    random_join_ratio=False, num_clients=20, few_shot=0, algorithm="FedProto", time_select=False, goal="test",
    time_threthold=1e4, top_cnt=100, auto_break=False, save_folder_name=task["folder"] + "/kept", eval_gap=1,
    client_drop_rate=0.0, train_slow_rate=0.0, send_slow_rate=0.0, feature_dim=512, lamda=1.0,
    models=["FedAvgCNN(in_features=1, num_classes=10, dim=1024)"], models_folder_name="")
ends = []
receive = FedProto.receive_protos
def note_round(self):
    receive(self)
    ends.append((time.process_time(), time.perf_counter()))
FedProto.receive_protos = note_round
FedProto.save_results = lambda self: None
FedProto(args, 0).train()
print("ENDS " + json.dumps(ends))
"""


def fedavg_cnn(input_shape: tuple[int, ...]) -> nn.Module:
    """FedAvgCNN up to the layer that leads to d."""
    layers: list[nn.Module] = []
    for channels, width in ((input_shape[0], 32), (32, 64)):
        layers += [nn.Conv2d(channels, width, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def write_partition(htflib: Path, file: Path, share: float) -> None:
    """Each client's first rows as arrays (n, 28, 28) uint8, with whose they are in `client` and `client_test`."""
    arrays: dict[str, list[Any]] = {}
    for client in range(CLIENTS):
        for split, end in (("train", ""), ("test", "_test")):
            rows = np.load(htflib / "dataset" / "mnist" / split / f"{client}.npz", allow_pickle=True)["data"].tolist()
            count = max(1, int(len(rows["y"]) * share))
            pixels = np.rint((np.asarray(rows["x"][:count]) * 0.5 + 0.5) * 255).astype(np.uint8)[:, 0]
            labels = np.asarray(rows["y"][:count], dtype=np.int64)
            for name, values in (("x", pixels), ("y", labels), ("client", np.full(count, client))):
                arrays.setdefault(name + end, []).append(values)
    np.savez(file, **{name: np.concatenate(parts) for name, parts in arrays.items()})


def our_round(file: Path, rounds: int, device: str, settings: Mapping[str, Any]) -> np.ndarray:
    """Mean seconds of the processor and by the clock of a round of ours after the first, in this process."""
    import torch

    torch.set_num_threads(1)
    ends: list[tuple[float, float]] = []
    protosphere.run(
        "fedproto",
        str(file.resolve()),
        models=fedavg_cnn,
        clients=CLIENTS,
        on_round=lambda figures: ends.append((time.process_time(), time.perf_counter())),
        quiet=True,
        settings=SETTINGS | {"rounds": rounds, "device": device, "prototype_loss": "mse"} | dict(settings),
    )
    return np.diff(np.array(ends), axis=0).mean(axis=0)


def their_round(folder: Path, htflib: Path, task: Mapping[str, Any]) -> np.ndarray:
    """The same of HtFLlib, in a process of its own; `task` has `share`, `rounds` and `device`.

    Raises:
        RuntimeError: it failed; the message ends with what it wrote.
    """
    command = [sys.executable, "-c", THEIRS, json.dumps(dict(task) | {"folder": str(folder.resolve())})]
    run = subprocess.run(command, cwd=htflib / "system", capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("ENDS ")]
    if not lines:
        raise RuntimeError(f"HtFLlib failed:\n{run.stdout[-2000:]}\n{run.stderr[-3000:]}")
    return np.diff(np.array(json.loads(lines[-1].removeprefix("ENDS "))), axis=0).mean(axis=0)


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--htflib", type=Path, required=True, help="a checkout of HtFLlib")
    parser.add_argument("--share", type=float, default=0.2, help="of each client's rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-c", "--set", action="append", default=[], help="a setting for ours, as `gamma=1`")
    options = parser.parse_args()
    settings = tomllib.loads("\n".join(options.set))
    print(f"{where()} | {options.share:g} of the rows, {options.device} {' '.join(options.set)}\n", flush=True)
    task = {"share": options.share, "rounds": options.rounds, "device": options.device}
    os.environ["OMP_NUM_THREADS"] = "1"
    pairs = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["PROTOSPHERE_HOME"] = str(folder / "home")
        file = folder / "mnist.npz"
        write_partition(options.htflib, file, options.share)
        for _ in range(options.repeats):
            theirs = their_round(folder, options.htflib.resolve(), task)
            ours = in_new_process(our_round, file, options.rounds, options.device, settings)
            pairs.append((theirs, ours))
            print(f"CPU s, s by the clock: HtFLlib {theirs.round(2)}, ours {ours.round(2)}", flush=True)
    print(f"\n{table_head('', 'CPU s a round', 's a round')}")
    for name, runs in zip(("HtFLlib", "ours"), zip(*pairs, strict=True), strict=True):
        print(table_row([name, *(f"{median(run[column] for run in runs):.2f}" for column in (CPU, CLOCK))]))
    by_cpu, by_clock = (median(theirs[column] / ours[column] for theirs, ours in pairs) for column in (CPU, CLOCK))
    print(f"\nours is {by_cpu:.2f} times as fast by the processor, {by_clock:.2f} by the clock")


if __name__ == "__main__":
    main()
