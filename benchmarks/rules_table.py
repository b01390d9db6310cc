"""Local, FedProto and ProtoNorm by all four prediction rules: the README's table on the demo, or any other run.

    python -m benchmarks.rules_table
    python -m benchmarks.rules_table --workers 2 -c 'dataset="../cifar10" models="resnet8,cnn4" rounds=12'

Test accuracy at the round with the best validation mean, and at the end; mean and standard deviation over seeds.
"""

import argparse
import json
import statistics
from typing import Any

from benchmarks.common import own_home, where
from experiments.local_grid import run_in_process
from experiments.run_config import plan
from federation.settings import RULES

METHODS = ("local", "fedproto", "protonorm")
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
        method: [_summary(method, seed, options.clients, options.workers, options.set) for seed in options.seeds]
        for method in METHODS
    }
    for figure in FIGURES:
        print(f"| {figure} | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
        for method, runs in summaries.items():
            cells = (_cell([run["rules"][rule][figure] for run in runs if rule in run["rules"]]) for rule in RULES)
            print(f"| {method} | " + " | ".join(cells) + " |")
        print()
    floors = [run["floor"]["majority-class"] for runs in summaries.values() for run in runs]
    print(f"always the client's majority class: {_cell(floors)}")


def _summary(method: str, seed: int, clients: int, workers: int, settings: list[str]) -> dict[str, Any]:
    wanted = plan([*settings, f'strategy="{method}" seed={seed}'], clients=clients)
    with own_home():
        folder = run_in_process(wanted.run_config, clients=clients, workers=workers, show=lambda line: None)
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = statistics.stdev(known) if len(known) > 1 else 0.0
    return f"{100 * statistics.mean(known):.1f} ± {100 * spread:.1f}"


if __name__ == "__main__":
    main()
