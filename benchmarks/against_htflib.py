"""FedProto on HtFLlib's own MNIST partition, by HtFLlib and by us: seconds of the processor, and by the clock, a round.

    git clone https://github.com/TsingZ0/HtFLlib
    python -m benchmarks.against_htflib --htflib HtFLlib
    python -m benchmarks.against_htflib --htflib HtFLlib --share 1 --device cuda

Twenty clients with the rows that its files give them (a share of each, the first), its FedAvgCNN at d = 512, batches of
10, one epoch, one thread; each evaluates in every round. A round is measured from the second on; runs alternate, and
each is a process of its own. Ours measures prototypes by a pass over the rows after training and evaluates by all
rules; HtFLlib takes the running mean of training and evaluates by one.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from benchmarks.common import ROOT, where

CLIENTS = 20
# run in HtFLlib's `system` folder: its server with the one algorithm alone, since the others want more packages
THEIRS = """
import argparse, json, sys, time, types
# it keeps its results by h5py, which nothing here needs
sys.modules.setdefault("h5py", types.ModuleType("h5py"))
import functools, torch
# of its own files, written a moment ago: it is of a time before `weights_only`
torch.load = functools.partial(torch.load, weights_only=False)
from flcore.trainmodel.models import *
import flcore.clients.clientbase as clientbase, flcore.servers.serverbase as serverbase
from flcore.servers.serverproto import FedProto
asked = json.loads(sys.argv[1])
torch.set_num_threads(1)
whole = clientbase.read_client_data
def some(*given, **more):
    rows = whole(*given, **more)
    return rows[: max(1, int(len(rows) * asked["share"]))]
clientbase.read_client_data = serverbase.read_client_data = some
args = argparse.Namespace(device=asked["device"], dataset="mnist", num_classes=10, batch_size=10,
    local_learning_rate=0.01, global_rounds=asked["rounds"] - 1, local_epochs=1, join_ratio=1.0,
    random_join_ratio=False, num_clients=20, few_shot=0, algorithm="FedProto", time_select=False, goal="test",
    time_threthold=1e4, top_cnt=100, auto_break=False, save_folder_name=asked["folder"] + "/kept", eval_gap=1,
    client_drop_rate=0.0, train_slow_rate=0.0, send_slow_rate=0.0, feature_dim=512, lamda=1.0,
    models=["FedAvgCNN(in_features=1, num_classes=10, dim=1024)"], models_folder_name="")
marks = []
received = FedProto.receive_protos
def mark(self):
    received(self)
    marks.append((time.process_time(), time.perf_counter()))
FedProto.receive_protos = mark
FedProto.save_results = lambda self: None
FedProto(args, 0).train()
print("MARKS " + json.dumps(marks))
"""


def fedavg_cnn(input_shape: tuple[int, ...], **_: Any) -> nn.Module:
    """FedAvgCNN up to the layer that leads to d."""
    from protosphere.models.small import cnn2

    return cnn2(input_shape, (32, 64), normed=False, padded=False)


def write_partition(htflib: Path, folder: Path, share: float) -> None:
    """Each client's rows as an image data set of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for client in range(CLIENTS):
        own = folder / str(client)
        own.mkdir()
        (own / "classes.txt").write_text("".join(f"{label}\n" for label in range(10)))
        for split in ("train", "test"):
            rows = np.load(htflib / "dataset" / "mnist" / split / f"{client}.npz", allow_pickle=True)["data"].tolist()
            count = max(1, int(len(rows["y"]) * share))
            pixels = np.rint((np.asarray(rows["x"][:count]) * 0.5 + 0.5) * 255).astype(np.uint8)[:, 0]
            images = [{"bytes": _png(each), "path": f"{row}.png"} for row, each in enumerate(pixels)]
            column = pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
            labels = [int(label) for label in rows["y"][:count]]
            pq.write_table(pa.table({"image": column, "label": labels}), own / f"{split}.parquet")


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def ours(folder: Path, rounds: int, device: str, settings: str) -> list[tuple[float, float]]:
    """Processor and clock at the end of each round of ours, in this process."""
    import torch

    from protosphere.launch.grid import LocalGrid, run_in_process
    from protosphere.launch.run_config import read_assignments

    torch.set_num_threads(1)
    marks: list[tuple[float, float]] = []

    class Apart(LocalGrid):
        """Each client has a folder of its own."""

        def __init__(self, run_config: Any, nodes: Any, workers: int = 1):
            own = [node | {"data-path": str(folder / str(node["partition-id"]))} for node in nodes]
            super().__init__(run_config, own, workers)

    def mark(line: str) -> None:
        if line.startswith("round "):
            marks.append((time.process_time(), time.perf_counter()))

    config = {
        "strategy": "fedproto",
        "dataset": str(folder / "0"),
        "split": "official",
        "models": "benchmarks.against_htflib:fedavg_cnn",
        "feature-dim": 512,
        "feature-activation": "relu",
        "rounds": rounds,
        "local-epochs": 1,
        "batch-size": 10,
        "learning-rate": 0.01,
        "prototype-weight": 1.0,
        "prototype-loss": "mse",
        "validation-share": 0.0,
        "min-samples": 1,
        "max-samples": 0,
        "device": device,
        "results-dir": str(folder / "results"),
    }
    run_in_process(config | read_assignments(settings), clients=CLIENTS, show=mark, grid_of=Apart)
    return marks


def per_round(marks: list[tuple[float, float]]) -> tuple[float, float]:
    """Processor and clock a round, from the second on."""
    (cpu, clock), (last_cpu, last_clock) = marks[0], marks[-1]
    return (last_cpu - cpu) / (len(marks) - 1), (last_clock - clock) / (len(marks) - 1)


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """Of a process that prints its marks last."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("MARKS ")]
    if not told:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return per_round(json.loads(told[-1].removeprefix("MARKS ")))


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--htflib", type=Path, required=True, help="a checkout of HtFLlib")
    parser.add_argument("--share", type=float, default=0.2, help="of each client's rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-c", "--set", default="", help="settings for ours")
    parser.add_argument("--ours", help=argparse.SUPPRESS)  # the folder of a child process
    options = parser.parse_args()
    if options.ours:
        print("MARKS " + json.dumps(ours(Path(options.ours), options.rounds, options.device, options.set)))
        return
    print(f"{where()} | {options.share:g} of the rows, {options.device} {options.set}\n", flush=True)
    found: dict[str, list[tuple[float, float]]] = {"HtFLlib": [], "ours": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_partition(options.htflib, folder, options.share)
        os.environ["PROTOSPHERE_HOME"] = str(folder / "home")
        asked = {"share": options.share, "rounds": options.rounds, "device": options.device, "folder": temporary}
        given = [f"--htflib={options.htflib.resolve()}", f"--rounds={options.rounds}", f"--device={options.device}"]
        mine = [sys.executable, "-m", "benchmarks.against_htflib", *given, f"--set={options.set}", f"--ours={folder}"]
        theirs = [sys.executable, "-c", THEIRS, json.dumps(asked)]
        for _ in range(options.repeats):
            found["HtFLlib"].append(measured(theirs, options.htflib.resolve() / "system"))
            found["ours"].append(measured(mine, ROOT))
            print({name: [round(value, 2) for value in runs[-1]] for name, runs in found.items()}, flush=True)
    print("\n| | CPU s a round | s a round |\n|---|---:|---:|")
    for name, runs in found.items():
        print(f"| {name} | {median(cpu for cpu, _ in runs):.2f} | {median(clock for _, clock in runs):.2f} |")
    ratios = [[a[i] / b[i] for a, b in zip(found["HtFLlib"], found["ours"], strict=True)] for i in (0, 1)]
    print(f"\nours is {median(ratios[0]):.2f} times as fast by the processor, {median(ratios[1]):.2f} by the clock")


if __name__ == "__main__":
    main()
