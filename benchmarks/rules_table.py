"""Local, FedProto, ProtoNorm and its control `frame` by all four prediction rules: the demo, as docs/running.md has it,
or any other run.

    python -m benchmarks.rules_table
    python -m benchmarks.rules_table --workers 2 -c 'dataset="../cifar10" models="resnet8,cnn4" rounds=12'

Test accuracy at the round with the best validation mean, and at the end; mean and standard deviation over seeds.
"""

import argparse

from benchmarks.common import percent, summary_of, where
from protosphere.core.settings import RULES

METHODS = ("local", "fedproto", "protonorm", "frame")
FIGURES = ("selected", "final")


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("-c", "--set", action="append", default=[], help="settings, as `protosphere run` takes them")
    options = parser.parse_args()
    print(where(), f"| {options.clients} clients, seeds {options.seeds} {' '.join(options.set)}\n", flush=True)
    summaries = {
        method: [
            summary_of([*options.set, f'strategy="{method}" seed={seed}'], options.clients, options.workers)
            for seed in options.seeds
        ]
        for method in METHODS
    }
    for figure in FIGURES:
        print(f"| {figure} | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
        for method, runs in summaries.items():
            cells = (percent([run["rules"][rule][figure] for run in runs if rule in run["rules"]]) for rule in RULES)
            print(f"| {method} | " + " | ".join(cells) + " |")
        print()
    floors = [run["floor"]["majority-class"] for runs in summaries.values() for run in runs]
    print(f"always the client's majority class: {percent(floors)}")


if __name__ == "__main__":
    main()
