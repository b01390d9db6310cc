"""GFPL, its ablations and its baselines where each client has a few rows of a few classes (its Tables 1 and 2).

    python -m benchmarks.few_shots --dataset ../mnist            (a folder with train.parquet and test.parquet)
    python -m benchmarks.few_shots --dataset ../cifar10 --ways 4 \\
        -c 'ways-spread=1 shots-spread=1 feature-dim=128 batch-size=32'

20 clients with the paper's CNN for MNIST, w-way 75-shot with spreads of 2 (a small MNIST does not have the rows for
100 at five ways), d = 50, SGD 0.01 with momentum 0.5, batches of 4, an exchange in every tenth round from the tenth.
Scaled to two cores: 31 rounds. Accuracy at the end by each method's own rule, on all test rows of a client's own
classes, clients weighted by them, and beside it on the test rows of all ten; nothing is chosen on test data. Components
are those of the exchanges, of all classes.
"""

import statistics
from typing import Any

from benchmarks.common import percent, runs_by_ways, table_parser

TASK = (
    'models="cnn2_narrow" feature-dim=50 partition="way-shot" split="official" shots=75 ways-spread=2 shots-spread=2 '
    "validation-share=0.0 batch-size=4 learning-rate=0.01 momentum=0.5 rounds=31 evaluate-every=10"
)
ROWS = {
    "Local": 'strategy="local"',
    "FedProto": 'strategy="fedproto"',
    "GFPL": 'strategy="gfpl"',
    "GFPL, S_C = 1 as printed": 'strategy="gfpl" gfpl.threshold=1.0 gfpl.threshold-per-dimension=false',
    "GFPL without pseudo-features": 'strategy="gfpl" gfpl.pseudo-features=0',
    "GFPL without the dual classifier": 'strategy="gfpl" gfpl.dual-classifier=false',
    "GFPL without both": 'strategy="gfpl" gfpl.pseudo-features=0 gfpl.dual-classifier=false',
}


def main() -> None:
    """Run every row on every number of ways and seed, and print a table for each number as Markdown."""
    parser = table_parser(__doc__, "mnist", [0, 1, 2], list(ROWS), list(ROWS))
    parser.add_argument("--ways", type=int, nargs="+", default=[3, 4, 5])
    options = parser.parse_args()
    for ways, found in runs_by_ways(options, TASK, ROWS):
        print(f"\n| {ways} ways | own rule | classifier | etf | all classes | components | payload, whole run |")
        print("|---|---|---|---|---|---|---|")
        for name, runs in found.items():
            print(f"| {name} |", " | ".join(_cells(runs)), "|")
        print(flush=True)


def _cells(runs: list[dict[str, Any]]) -> list[str]:
    rules = [percent([run["rules"].get(rule, {}).get("final") for run in runs]) for rule in ("classifier", "etf")]
    before, after = (_mean([_components(run, when) for run in runs]) for when in ("before", "after"))
    payload = statistics.mean(run["bytes"]["payload_up"] + run["bytes"]["payload_down"] for run in runs)
    fused = f"{before:.0f} to {after:.0f}" if before else "-"
    every = percent([_own_rule(run).get("all-classes") for run in runs])
    return [percent([_accuracy(run) for run in runs]), *rules, every, fused, f"{payload / 1e3:.0f} kB"]


def _accuracy(run: dict[str, Any]) -> float:
    return _own_rule(run)["final"]


def _own_rule(run: dict[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = run["rules"][run["headline"]["rule"]]
    return figures


def _components(run: dict[str, Any], when: str) -> list[int]:
    """Of all classes in each exchange, before the fusion or after it."""
    figures = [line["server"].get(f"components_{when}") for line in run["lines"]]
    return [figure for figure in figures if figure is not None]


def _mean(lists: list[list[int]]) -> float:
    values = [value for values in lists for value in values]
    return statistics.mean(values) if values else 0.0


if __name__ == "__main__":
    main()
