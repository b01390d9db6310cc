"""FedProto on HtFLlib's own MNIST partition, by HtFLlib and by us: seconds of the processor, and by the clock, a round.

    git clone https://github.com/TsingZ0/HtFLlib
    python -m benchmarks.against_htflib --htflib HtFLlib
    python -m benchmarks.against_htflib --htflib HtFLlib --share 1 --device cuda

Twenty clients with the rows that its files give them (a share of each, the first), its FedAvgCNN at d = 512, batches of
10, one epoch, one thread; each evaluates in every round. A round is measured from the second on; runs alternate, and
each is a process of its own. Ours measures prototypes by a pass over the rows after training and evaluates by all
rules; HtFLlib takes the running mean of training and evaluates by one.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from benchmarks.common import CLOCK, CPU, described_parser, in_new_process, table_head, table_row, timed_rounds, where
from protosphere.launch.grid import LocalGrid
from protosphere.launch.run_config import read_assignments
from protosphere.models.small import cnn2

CLIENTS = 20
SETTINGS = """
strategy="fedproto" split="official" models="benchmarks.against_htflib:fedavg_cnn" feature-dim=512
feature-activation="relu" local-epochs=1 batch-size=10 learning-rate=0.01 prototype-weight=1.0 prototype-loss="mse"
validation-share=0.0 min-samples=1 max-samples=0
"""
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


def fedavg_cnn(input_shape: tuple[int, ...], **_: Any) -> nn.Module:
    """FedAvgCNN up to the layer that leads to d."""
    return cnn2(input_shape, (32, 64), normed=False, padded=False)


def write_partition(htflib: Path, folder: Path, share: float) -> None:
    """Each client's rows as an image data set of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for client in range(CLIENTS):
        target = folder / str(client)
        target.mkdir()
        (target / "classes.txt").write_text("".join(f"{label}\n" for label in range(10)))
        for split in ("train", "test"):
            rows = np.load(htflib / "dataset" / "mnist" / split / f"{client}.npz", allow_pickle=True)["data"].tolist()
            count = max(1, int(len(rows["y"]) * share))
            pixels = np.rint((np.asarray(rows["x"][:count]) * 0.5 + 0.5) * 255).astype(np.uint8)[:, 0]
            images = [{"bytes": png(image), "path": f"{row}.png"} for row, image in enumerate(pixels)]
            labels = [int(label) for label in rows["y"][:count]]
            table = pa.table({"image": pa.array(images, image_type), "label": labels})
            pq.write_table(table, target / f"{split}.parquet")


def png(pixels: np.ndarray) -> bytes:
    """An image (H, W) as a file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def our_round(folder: Path, rounds: int, device: str, settings: str) -> np.ndarray:
    """Mean seconds of the processor and by the clock of a round of ours, in this process."""
    import torch

    torch.set_num_threads(1)

    class OneFolderEach(LocalGrid):
        """Each client has the folder of its own rows."""

        def __init__(self, run_config: Any, nodes: Any, workers: int = 1):
            paths = [node | {"data-path": str(folder / str(node["partition-id"]))} for node in nodes]
            super().__init__(run_config, paths, workers)

    task = {"dataset": str(folder / "0"), "rounds": rounds, "device": device, "results-dir": str(folder / "results")}
    config = read_assignments(SETTINGS) | task | read_assignments(settings)
    return timed_rounds(config, CLIENTS, OneFolderEach)[1].mean(axis=0)


def their_round(folder: Path, htflib: Path, task: dict[str, Any]) -> np.ndarray:
    """The same of HtFLlib, in a process of its own."""
    command = [sys.executable, "-c", THEIRS, json.dumps(task | {"folder": str(folder)})]
    run = subprocess.run(command, cwd=htflib / "system", capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("ENDS ")]
    if not lines:
        sys.exit(f"HtFLlib failed:\n{run.stdout[-2000:]}\n{run.stderr[-3000:]}")
    return np.diff(np.array(json.loads(lines[-1].removeprefix("ENDS "))), axis=0).mean(axis=0)


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--htflib", type=Path, required=True, help="a checkout of HtFLlib")
    parser.add_argument("--share", type=float, default=0.2, help="of each client's rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-c", "--set", default="", help="settings for ours")
    options = parser.parse_args()
    print(f"{where()} | {options.share:g} of the rows, {options.device} {options.set}\n", flush=True)
    task = {"share": options.share, "rounds": options.rounds, "device": options.device}
    os.environ["OMP_NUM_THREADS"] = "1"
    pairs = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["PROTOSPHERE_HOME"] = str(folder / "home")
        write_partition(options.htflib, folder, options.share)
        for _ in range(options.repeats):
            theirs = their_round(folder, options.htflib.resolve(), task)
            ours = in_new_process(our_round, folder, options.rounds, options.device, options.set)
            pairs.append((theirs, ours))
            print(f"CPU s, s by the clock: HtFLlib {theirs.round(2)}, ours {ours.round(2)}", flush=True)
    print(f"\n{table_head('', 'CPU s a round', 's a round')}")
    for name, runs in zip(("HtFLlib", "ours"), zip(*pairs, strict=True), strict=True):
        print(table_row([name, *(f"{median(run[column] for run in runs):.2f}" for column in (CPU, CLOCK))]))
    by_cpu, by_clock = (median(theirs[column] / ours[column] for theirs, ours in pairs) for column in (CPU, CLOCK))
    print(f"\nours is {by_cpu:.2f} times as fast by the processor, {by_clock:.2f} by the clock")


if __name__ == "__main__":
    main()
