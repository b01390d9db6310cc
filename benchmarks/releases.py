"""The accuracy of a private release: the table of docs/privacy.md.

    python -m benchmarks.releases --data ../mnist    # a folder of MNIST

Ten clients have two to four classes each, and a number of samples per class. By the rule `encoder`, with handcrafted
features, the first client predicts all ten classes of 500 test samples. Its classifier is the same as every other
client's. By the rule `classifier` each client's private model predicts test samples of its own classes.
"""

import io
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

import protosphere
from benchmarks.common import described_parser, own_home, store_figures, table_head, table_row, where

EPSILONS = (1.0, 3.0, 8.0)
SHOTS = (20, 50, 100)
CLIENTS = 10
COMMON: dict[str, Any] = {
    "partition": "way-shot",
    "split": "official",
    "models": "tiny_perceptron,tiny_cnn",
    "device": "cpu",
    "report": False,
}


def release(epsilon: float) -> dict[str, Any]:
    """The settings of a release; clients also report the accuracy, outside the guarantee."""
    return {"privacy": "release", "privacy-epsilon": epsilon, "privacy-measure": True, "encoder": "handcrafted"}


def read_images(folder: str, split: str, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, h, w) and labels (n,)."""
    table = pd.read_parquet(Path(folder) / f"{split}.parquet")[:limit]
    images = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("L")) for cell in table["image"]]
    return np.stack(images), table["label"].to_numpy()


def all_classes(run: protosphere.Run, images: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of the exchanged classifier in %, over samples of every class."""
    client = run.client(0)
    if "encoder" not in client.rules:
        # no class exceeds the noise, so nothing is predicted
        return 0.0
    predictions = client.predict(images[:, None], rule="encoder").labels
    return 100 * float((predictions == labels).mean())


def measured(data: str, seeds: int) -> Iterator[dict[str, Any]]:
    """One row per measurement."""
    images, labels = read_images(data, "test", 500)
    dataset = (*read_images(data, "train", 12_000), images, labels)
    for seed, shots in product(range(seeds), SHOTS):
        settings = COMMON | {"seed": seed, "shots": shots}
        for epsilon in (*EPSILONS, None):
            # without a release: the same means without noise
            changes = {"strategy": "fedncm", "encoder": "handcrafted", "disclose-class-counts": True}
            if epsilon is not None:
                changes = {"strategy": "fedproto"} | release(epsilon)
            with own_home():
                # the release is sent once, and does not depend on the private models' training
                run = protosphere.run(
                    changes.pop("strategy"), dataset, clients=CLIENTS, rounds=1, quiet=True, settings=settings | changes
                )
                accuracy = all_classes(run, images, labels)
            yield {"rule": "encoder", "shots": shots, "epsilon": epsilon, "seed": seed, "accuracy": accuracy}
    for seed in range(seeds):
        settings = COMMON | {"seed": seed, "shots": 50, "rounds": 20, "evaluate-every": 20}
        for epsilon in (3.0, None):
            changes = {"strategy": "frame"} if epsilon is None else {"strategy": "protonorm"} | release(epsilon)
            with own_home():
                run = protosphere.run(
                    changes.pop("strategy"), dataset, clients=CLIENTS, quiet=True, settings=settings | changes
                )
                accuracy = 100 * run.summary["rules"]["classifier"]["final"]
            yield {"rule": "classifier", "shots": 50, "epsilon": epsilon, "seed": seed, "accuracy": accuracy}


def main() -> None:
    """Print each measurement, and store all."""
    parser = described_parser(__doc__)
    parser.add_argument("--data", required=True, help="a folder of MNIST")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{where()}\n\n{table_head('rule', 'samples per class', 'ε', 'seed', 'accuracy')}", flush=True)
    rows = []
    for row in measured(options.data, options.seeds):
        rows.append(row)
        print(table_row(row.values()), flush=True)
    store_figures("releases", pd.DataFrame(rows))


if __name__ == "__main__":
    main()
