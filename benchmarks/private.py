"""What a private release is worth: accuracy by ε, beside methods that send nothing, or everything; and what it costs.

    python -m benchmarks.private
    python -m benchmarks.private --dataset mnist -c 'max-samples=2000 models="tiny_cnn4"' --encoder ./usps.py

Ten clients, Dirichlet 0.1. Figures of private rows leave in the clear here (`privacy-measure`): the data are public.
The encoder `random` is no good one; a better one decides the rule `encoder`, which knows classes that a client lacks.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.common import percent, summary_of, where
from client_app.ledger import Asked, Ledger
from models.encoder import public_encoder
from prototypes.accounting import rho_of
from prototypes.discrete_gaussian import draw
from prototypes.release import Shape, class_sums, noisy

TASK = "alpha=0.1 rounds=20"
RULES = ("local-prototypes", "global-prototypes", "discriminant", "encoder")
EPSILONS = (1.0, 3.0, 8.0, 10_000.0)  # the last as good as no noise
DELTA = 1e-5


def seconds() -> None:
    """Of encoder, noise and ledger, for ten classes of 64 and a hundred of 512 values."""
    print("\n| K, d | encoder, a row | noise | ledger, a new release | a stored one |\n|---|---|---|---|---|")
    for classes, dim in ((10, 64), (100, 512)):
        shape, marks = Shape(classes, dim), [time.perf_counter()]
        encoder, rows = public_encoder("random", (3, 32, 32), dim), torch.randn(100, 3, 32, 32)
        marks.append(time.perf_counter())
        sums = class_sums(encoder(rows), torch.arange(100) % classes, shape)
        marks.append(time.perf_counter())
        variance = shape.variance(rho_of(3.0, DELTA))
        noisy(sums, variance, draw)
        marks.append(time.perf_counter())
        with tempfile.TemporaryDirectory() as folder:
            asked = Asked({}, "run", "row", "random", shape, variance, DELTA)
            for _ in range(2):
                Ledger(Path(folder)).release(asked, lambda sums=sums: sums)
                marks.append(time.perf_counter())
        took = [1e3 * (after - before) for before, after in pairwise(marks[1:])]
        one, noise, new, stored = took[0] / len(rows), took[1], took[2] - took[1], took[3]
        print(f"| {classes}, {dim} | {one:.2f} ms | {noise:.0f} ms | {max(new, 0):.0f} ms more | {stored:.1f} ms |")


def main() -> None:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--encoder", default="random")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["fedproto", "protonorm"])
    parser.add_argument("-c", "--set", action="append", default=[], help="settings, as `protosphere run` takes them")
    asked = parser.parse_args()
    release = f'privacy="release" privacy-measure=true privacy-encoder="{asked.encoder}"'
    rows = {name: f'strategy="{name}"' for name in ("local", "frame", *asked.methods)}
    rows |= {
        f"{name}, release ε {epsilon:g}": f'strategy="{name}" {release} privacy-epsilon={epsilon}'
        for name in asked.methods
        for epsilon in EPSILONS
    }
    settings = [TASK, f'dataset="{asked.dataset}"', *asked.set]
    print(where(), f"| {asked.clients} clients, seeds {asked.seeds}, {' '.join(settings)}\n", flush=True)
    print(f"| final accuracy in % | {' | '.join(RULES)} |\n|---|{'---|' * len(RULES)}", flush=True)
    for name, row in rows.items():
        runs = [summary_of([*settings, f"{row} seed={seed}"], asked.clients, 1) for seed in asked.seeds]
        cells = (percent([run["rules"][rule]["final"] for run in runs if rule in run["rules"]]) for rule in RULES)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    seconds()


if __name__ == "__main__":
    main()
