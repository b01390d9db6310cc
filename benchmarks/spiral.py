"""The picture of the README: do global prototypes stay apart under label skew?

    python -m benchmarks.spiral    # docs/images/spiral.png

Preset `spiral`: six spiral-shaped classes, features in the plane, ten clients. It prints and keeps, for each method,
the smallest angle between two global prototypes.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
import torch

import protosphere
from benchmarks.common import ROOT, described_parser, own_home, store_figures, table_head, table_row, where

METHODS = {"fedproto": "FedProto", "protonorm": "ProtoNorm"}
PICTURE = ROOT / "docs" / "images" / "spiral.png"


def smallest_angle(vectors: "np.ndarray[Any, Any]") -> float:
    """Degrees between the two nearest directions."""
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = directions @ directions.T
    np.fill_diagonal(cosines, -1.0)
    return math.degrees(math.acos(min(1.0, float(cosines.max()))))


def draw(prototypes_by_method: dict[str, protosphere.Prototypes], angles: dict[str, float]) -> None:
    """Global prototypes as dashed lines, those of clients as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    colours = [f"C{label}" for label in range(10)]
    for place, (method, prototypes) in enumerate(prototypes_by_method.items(), start=1):
        axes = figure.add_subplot(1, len(prototypes_by_method), place)
        for label, (x, y) in zip(prototypes.labels, prototypes.vectors, strict=True):
            axes.plot([0, x], [0, y], "--", color=colours[label], linewidth=1.4)
        points = prototypes.client_vectors
        shades = [colours[label] for label in prototypes.client_labels]
        axes.scatter(points[:, 0], points[:, 1], c=shades, s=26, edgecolor="white", linewidth=0.4)
        axes.set_title(f"{METHODS[method]}: smallest angle {angles[method]:.0f}°", fontsize=11)
        axes.set_aspect("equal", adjustable="datalim")
        axes.tick_params(labelsize=8)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    """Run both methods, print, draw."""
    described_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    print(f"{where()}\n\n{table_head('method', 'smallest angle, degrees')}", flush=True)
    prototypes_by_method: dict[str, protosphere.Prototypes] = {}
    angles: dict[str, float] = {}
    for method in METHODS:
        with own_home():
            run = protosphere.run(method, preset="spiral", quiet=True, device="cpu", report=False)
            prototypes_by_method[method] = run.prototypes()
        angles[method] = smallest_angle(prototypes_by_method[method].vectors)
        print(table_row([method, f"{angles[method]:.1f}"]), flush=True)
    store_figures("spiral", pd.DataFrame({"method": list(angles), "angle": list(angles.values())}))
    draw(prototypes_by_method, angles)


if __name__ == "__main__":
    main()
