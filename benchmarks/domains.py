"""PFPL, its alternatives and its control where clients differ in domain and in classes (its Table 1), by domain.

    python -m benchmarks.domains --dataset '../mnist,../usps,../mnist_m'
    python -m benchmarks.domains --dataset '../pacs/*' --ways 3 --seeds 0 --rows PFPL -c 'shots=8' --picture pacs.png

20 clients of one domain and n classes each (n ± 1), 25 images of a class, one CNN for all, d = 64; SGD 0.01 with
momentum 0.9 and weight decay 1e-5, batches of 4, lambda = 1, as in the paper; scaled to two cores: a small CNN with
group norm in place of ResNet-18, few images, 20 rounds of 100. Accuracy of the classifier at the end, on all test rows
of a client's domain and classes, clients weighted by them; nothing is chosen on test data. `--picture` draws the
personalised prototypes of each PFPL run, the last one staying, as the paper's Figure 3 does: by t-SNE, coloured by
class, marked by domain.
"""

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import percent, runs_by_ways, table_parser

TASK = (
    'models="tiny_cnn" feature-dim=64 partition="mixed" split="official" shots=25 shots-spread=0 ways-spread=1 '
    "validation-share=0.0 batch-size=4 learning-rate=0.01 momentum=0.9 weight-decay=1e-5 rounds=20 evaluate-every=20 "
    'prototype-weight=1.0 prototype-loss="l2"'
)
ROWS = {
    "Local": 'strategy="local" inference="classifier"',
    "FedProto, plain mean (unbiased prototypes)": 'strategy="fedproto" inference="classifier"',
    "FedProto, weighted (global prototypes)": 'strategy="fedproto" inference="classifier" '
    'fedproto.aggregation="weighted" disclose-class-counts=true',
    "PFPL": 'strategy="pfpl"',
    "PFPL, weights as printed": 'strategy="pfpl" pfpl.weighting="distance"',
    "PFPL, alpha = 1 (nothing exchanged)": 'strategy="pfpl" pfpl.alpha=1.0',
}
PICTURED = "PFPL"


def main() -> None:
    """Run every row on every number of classes and seed, and print a table for each number as Markdown."""
    parser = table_parser(__doc__, "~/pacs/*", [0, 1, 2], list(ROWS), list(ROWS))
    parser.add_argument("--ways", type=int, nargs="+", default=[3, 4, 5], help="n, classes of a client")
    parser.add_argument("--picture", type=Path, help="a file for the picture of the personalised prototypes")
    options = parser.parse_args()
    painters = {PICTURED: _painter(options.picture)} if options.picture else {}
    for ways, found in runs_by_ways(options, TASK, ROWS, painters):
        domains = list(found[options.rows[0]][0]["domains"])
        print(f"\n| n = {ways} | all | {' | '.join(domains)} | weight on own domain (if alike) | payload |")
        print("|---" * (len(domains) + 4) + "|")
        for name, runs in found.items():
            print(f"| {name} |", " | ".join(_cells(runs, domains)), "|")
        print(flush=True)


def _cells(runs: list[dict[str, Any]], domains: list[str]) -> list[str]:
    accuracies = [percent([run["headline"]["accuracy"] for run in runs])]
    for domain in domains:
        # with few seeds a domain has other clients each time: its spread is theirs, too
        accuracies.append(percent([run["domains"][domain].get(run["headline"]["rule"]) for run in runs]))
    weights, alike = (_last(runs, name) for name in ("own_domain_weight", "own_domain_weight_if_alike"))
    kept = f"{weights:.2f} ({alike:.2f})" if weights is not None else "-"
    payload = statistics.mean(run["bytes"]["payload_up"] + run["bytes"]["payload_down"] for run in runs)
    return [*accuracies, kept, f"{payload / 1e3:.0f} kB"]


def _last(runs: list[dict[str, Any]], figure: str) -> float | None:
    """Mean over runs of a server's figure in the last round; None where it has none."""
    values = [run["lines"][-1]["server"].get(figure) for run in runs]
    return None if None in values else statistics.mean(values)


def _painter(target: Path) -> Callable[[Path], None]:
    """What is done with the results folder of a run before it goes."""
    return lambda folder: paint(folder, target)


def paint(folder: Path, target: Path) -> None:
    """Draw the personalised prototypes of the run in `folder`: a point for each client and class."""
    import json

    import matplotlib.pyplot as plt
    import torch
    from sklearn.manifold import TSNE

    from protosphere.record.folder import RunFolder
    from protosphere.server_app.checkpoint import unpack
    from protosphere.wire.payloads import EVERYONE

    tensors, _ = RunFolder(folder).load_checkpoint()
    downloads = {partition: each for partition, each in unpack(tensors)[1].items() if partition != EVERYONE}
    roster = json.loads((folder / "roster.json").read_text())
    domain_of = {client["partition"]: client["domain"] for client in roster}
    names = roster[0]["class_names"]
    labels = torch.cat([each.labels for each in downloads.values()]).numpy()
    domains = [domain_of[partition] for partition, each in downloads.items() for _ in each.labels]
    vectors = torch.cat([each.vectors for each in downloads.values()]).numpy()
    points = TSNE(perplexity=min(10, len(vectors) - 1), random_state=0, init="pca").fit_transform(vectors)
    figure, axes = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
    classes = sorted(set(labels.tolist()))
    colours = plt.get_cmap("tab10" if len(classes) <= 10 else "tab20")
    for domain, marker in zip(sorted(set(domains)), itertools.cycle("os^DvPX*<>"), strict=False):
        of_domain = [place for place, name in enumerate(domains) if name == domain]
        axes.scatter(
            *points[of_domain].T, c=[colours(classes.index(labels[i])) for i in of_domain], marker=marker, s=45
        )
        axes.scatter([], [], facecolors="none", edgecolors="black", marker=marker, s=45, label=domain)
    for place, label in enumerate(classes):
        axes.scatter([], [], color=colours(place), marker="s", label=names[label])
    axes.set(xticks=[], yticks=[], title="Personalised prototypes after the last round, by t-SNE")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(target, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
