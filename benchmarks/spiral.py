"""ProtoNorm's motivating example: do global prototypes stay apart under label skew? (its Figure 2)

    python -m benchmarks.spiral [--figure docs/images/spiral.png]

Preset `spiral`: six spirals, features in the plane, ten clients. Prints, a method, the smallest angle between global
prototypes and the accuracy of the nearest local prototype; draws prototypes and features.
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.common import own_home, preset, where
from protosphere.client_app.client import Client
from protosphere.client_app.evaluate import features_of
from protosphere.launch.grid import run_in_process
from protosphere.strategies import known_settings
from protosphere.strategies.frame import seeded_frame

RUNS: dict[str, dict[str, Any]] = {
    "Local": {"strategy": "local"},
    "FedProto (IID)": {"strategy": "fedproto", "partition": "iid"},
    "FedProto": {"strategy": "fedproto"},
    "Frame, γ = 10": {"strategy": "frame", "frame.gamma": 10.0},
    "ProtoNorm, γ = 1": {"strategy": "protonorm", "protonorm.gamma": 1.0},
    "ProtoNorm, γ = 10": {"strategy": "protonorm", "protonorm.gamma": 10.0},
}
CLIENTS = 10


@dataclass
class Seen:
    """What a run left: global prototypes (K, 2) as targets, local ones by client, one client's test features."""

    accuracy: float
    angle: float | None
    targets: Tensor | None
    local: list[tuple[Tensor, Tensor]]
    features: Tensor
    labels: Tensor


def run(settings: dict[str, Any], home: Path, shown_client: int) -> Seen:
    """One run, read back from its folder and its clients' stores."""
    config = known_settings() | settings
    folder = run_in_process(config, clients=CLIENTS, show=lambda line: None)
    summary = json.loads((folder / "summary.json").read_text())
    download = load_file(folder / "checkpoint.safetensors").get("download/-1/vectors")
    stores = [home / "clients" / folder.name / str(partition) for partition in range(CLIENTS)]
    local = []
    for store in stores:
        newest = load_file(max(store.glob("round-*.safetensors")))
        local.append((newest["prototypes/labels"], newest["prototypes/vectors"]))
    client = Client(Context(0, 0, {"partition-id": shown_client, "num-partitions": CLIENTS}, RecordDict(), config))
    state = client.restore(folder.name)
    with torch.no_grad():
        features = features_of(client.objective, state, client.data.test, client.data.transform)
    if settings["strategy"] == "frame":
        download = seeded_frame(client.data.num_classes, config["feature-dim"], config["seed"]).vectors
    scale = settings.get(f"{settings['strategy']}.gamma", 1.0)
    return Seen(
        accuracy=summary["rules"]["local-prototypes"]["final"],
        angle=None if download is None else smallest_angle(download),
        targets=None if download is None else scale * download,
        local=local,
        features=features,
        labels=client.data.test.labels,
    )


def smallest_angle(vectors: Tensor) -> float:
    """Degrees between the two nearest directions."""
    directions = torch.nn.functional.normalize(vectors.double(), dim=1)
    cosines = directions @ directions.T - 2 * torch.eye(len(vectors), dtype=torch.float64)
    return math.degrees(math.acos(min(1.0, float(cosines.max()))))


def draw(seen: dict[str, Seen], shown_client: int, path: Path) -> None:
    """Above: global prototypes (dashed) and local ones (points). Below: one client's test features and prototypes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in seen if name != "Local"]
    colours = pyplot.get_cmap("tab10").colors
    figure, axes = pyplot.subplots(2, len(names), figsize=(3.4 * len(names), 7), constrained_layout=True)
    for column, name in enumerate(names):
        above, below = axes[0, column], axes[1, column]
        result = seen[name]
        assert result.targets is not None
        for label, target in enumerate(result.targets.tolist()):
            for axis in (above, below):
                axis.plot([0, target[0]], [0, target[1]], "--", color=colours[label], linewidth=1.2)
        for labels, vectors in result.local:
            above.scatter(*vectors.T, c=[colours[label] for label in labels], s=22, edgecolor="white", linewidth=0.4)
        below.scatter(*result.features.T, c=[colours[label] for label in result.labels], s=5, alpha=0.6)
        labels, vectors = result.local[shown_client]
        for label, vector in zip(labels.tolist(), vectors.tolist(), strict=True):
            below.plot([0, vector[0]], [0, vector[1]], "-", color=colours[label], linewidth=2)
        angle = f"smallest angle {result.angle:.1f}°"
        above.set_title(f"{name}\n{angle}, accuracy {100 * result.accuracy:.1f} %", fontsize=10)
        below.set_title(f"test features of client {shown_client}", fontsize=10)
        for axis in (above, below):
            axis.set_aspect("equal", adjustable="datalim")
            axis.tick_params(labelsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"figure: {path}")


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--client", type=int, default=0, help="whose features are drawn")
    parser.add_argument("--figure", type=Path, help="draw the first seed's runs there")
    options = parser.parse_args()
    settings = preset("spiral") | ({"rounds": options.rounds} if options.rounds else {})
    print(f"{where()} | preset spiral, {settings['rounds']} rounds, seeds {options.seeds}\n")
    print(
        "| method | smallest angle between global prototypes | final accuracy, nearest local prototype |\n|---|---|---|"
    )
    first: dict[str, Seen] = {}
    for name, own in RUNS.items():
        angles, accuracies = [], []
        for seed in options.seeds:
            with own_home() as home:
                result = run(settings | own | {"seed": seed}, home, options.client)
            first.setdefault(name, result)
            accuracies.append(f"{100 * result.accuracy:.1f}")
            angles.append("-" if result.angle is None else f"{result.angle:.2f}°")
        print(f"| {name} | {', '.join(angles)} | {', '.join(accuracies)} % |", flush=True)
    if options.figure:
        draw(first, options.client, options.figure)


if __name__ == "__main__":
    main()
