"""What a byte buys: accuracy and bytes a round of the methods and of TinyProto's compression, on one partition a seed.

    python -m benchmarks.bytes_and_accuracy --dataset ../cifar10 --workers 2      (a folder with train.parquet)
    python -m benchmarks.bytes_and_accuracy --dataset ../cifar10 \\
        -c 'device="cuda" models="papers-protonorm" max-samples=0 rounds=300'     (the paper's protocol, on a GPU)

The first 12,000 images of CIFAR-10, 20 clients, Dirichlet 0.1, ResNet-8 and the 4-layer CNN in turn, d = 500, s = 50,
SGD 0.01. Test accuracy by the nearest local prototype (the papers' rule): `best` is the highest over the rounds, chosen
on the test set as TinyProto's table does; `selected` is at the round with the best validation mean. Bytes are of the
last round, both directions: payload is prototype values alone; wire is the serialised messages without the evaluation's
figures.
"""

import statistics
import time
from typing import Any

from benchmarks.common import percent, summary_of, table_parser, where

TASK = (
    'models="resnet8,cnn4" max-samples=12000 partition="dirichlet" alpha=0.1 feature-dim=500 rounds=10 '
    "learning-rate=0.01 batch-size=32"
)
MASKS = "sparsity-dim=50"
ROWS = {
    "Local": 'strategy="local"',
    "FedProto": 'strategy="fedproto"',
    "FedTGP": 'strategy="fedtgp"',
    "TinyProto-FP": f'strategy="tinyproto-fp" {MASKS}',
    "TinyProto-FT": f'strategy="tinyproto-ft" {MASKS}',
    "Frame (nothing sent)": 'strategy="frame"',
    "ProtoNorm": 'strategy="protonorm"',
    "ProtoNorm + masks": f'strategy="protonorm" {MASKS}',
    "ProtoNorm + masks + int8": f'strategy="protonorm" {MASKS} wire-dtype="int8"',
}
FIGURES = ("best", "selected", "final")


def main() -> None:
    """Run every row on every seed and print the table as Markdown."""
    parser = table_parser(__doc__, "cifar10", [0], list(ROWS), list(ROWS))
    options = parser.parse_args()
    settings = [TASK, f'dataset="{options.dataset}"', *options.set]
    print(where(), f"| {options.clients} clients, seeds {options.seeds}, {' '.join(settings)}\n", flush=True)
    found = {name: [] for name in options.rows}
    for seed in options.seeds:
        for name in options.rows:
            began = time.monotonic()
            run = summary_of([*settings, f"{ROWS[name]} seed={seed}"], options.clients, options.workers)
            found[name].append(run)
            best = run["rules"]["local-prototypes"]["best"]
            print(f"seed {seed}, {name}: {100 * best:.1f} % best, {time.monotonic() - began:.0f} s", flush=True)
        # after every seed: what was measured is not lost with what was not
        _print_table(found)


def _print_table(found: dict[str, list[dict[str, Any]]]) -> None:
    print("\n| |", " | ".join(FIGURES), "| discriminant, final | payload a round | of FedProto's | wire a round |")
    print("|---|" + "---|" * (len(FIGURES) + 4))
    reference = statistics.mean(map(_payload, found["FedProto"])) if "FedProto" in found else None
    for name, runs in found.items():
        print(f"| {name} |", " | ".join(_cells(runs, reference)), "|")
    floors = [run["floor"]["majority-class"] for runs in found.values() for run in runs]
    print(f"\nalways the client's majority class: {percent(floors)}", flush=True)


def _cells(runs: list[dict[str, Any]], reference: float | None) -> list[str]:
    rules = [run["rules"] for run in runs]
    cells = [percent([rule["local-prototypes"][figure] for rule in rules]) for figure in FIGURES]
    cells.append(percent([rule["discriminant"]["final"] for rule in rules]))
    payload, wire = statistics.mean(map(_payload, runs)), statistics.mean(map(_wire, runs))
    share = f"{payload / reference:.3f}" if reference else "-"
    return [*cells, f"{payload / 1e3:.1f} kB", share, f"{wire / 1e3:.1f} kB"]


def _payload(run: dict[str, Any]) -> int:
    sizes: dict[str, int] = run["lines"][-1]["bytes"]
    return sizes["payload_up"] + sizes["payload_down"]


def _wire(run: dict[str, Any]) -> int:
    sizes: dict[str, int] = run["lines"][-1]["bytes"]
    return sizes["wire_up"] + sizes["wire_down"] - sizes["evaluation_wire_up"]


if __name__ == "__main__":
    main()
