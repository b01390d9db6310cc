"""The README's table: local, FedProto and ProtoNorm on the demo by all four prediction rules.

    python -m benchmarks.demo_table

Test accuracy at the round with the best validation mean, and at the end; mean and standard deviation over seeds.
"""

import argparse
import json
import statistics

from benchmarks.common import own_home, where
from experiments.local_grid import run_in_process
from federation.settings import RULES

METHODS = ("local", "fedproto", "protonorm")


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(where(), f"| digits, 10 clients, Dirichlet 0.1, {options.rounds} rounds, seeds {options.seeds}\n")
    floors: list[float] = []
    for figure in ("selected", "final"):
        print(f"| {figure} | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
        for method in METHODS:
            accuracies: dict[str, list[float]] = {rule: [] for rule in RULES}
            for seed in options.seeds:
                summary = _summary(method, seed, options.rounds)
                floors.append(summary["floor"]["majority-class"])
                for rule in RULES:
                    if rule in summary["rules"]:
                        accuracies[rule].append(summary["rules"][rule][figure])
            print(f"| {method} | " + " | ".join(_cell(accuracies[rule]) for rule in RULES) + " |")
        print()
    print(f"always the client's majority class: {_cell(floors)}")


_done: dict[tuple[str, int], dict] = {}


def _summary(method: str, seed: int, rounds: int) -> dict:
    if (method, seed) not in _done:
        config = {"strategy": method, "seed": seed, "rounds": rounds}
        with own_home():
            folder = run_in_process(config, clients=10, show=lambda line: None)
            _done[method, seed] = json.loads((folder / "summary.json").read_text())
    return _done[method, seed]


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * spread:.1f}"


if __name__ == "__main__":
    main()
