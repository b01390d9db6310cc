"""What a private release is worth: accuracy by ε, beside methods that send nothing, or everything; and what it costs.

    python -m benchmarks.private
    python -m benchmarks.public_encoder ../usps usps      # a better encoder than `random`, trained on other data
    python -m benchmarks.private --dataset ../mnist --encoder usps/encoder.py --shots 20 50 200 --dims 64
    python -m benchmarks.public_encoder ../cifar10 half --classes 0 1 2 3 4      # one half of the classes for the other
    python -m benchmarks.private --dataset ../cifar10 --classes 5 6 7 8 9 --encoder half/encoder.py --shots 50

Ten clients, Dirichlet 0.1; with `--shots` each has so many rows of each of two to four classes, and accuracy on the
test rows of its own classes stands before that on all classes. Figures of private rows leave in the clear here
(`privacy-measure`): the data are public.
The encoder `random` is no good one; a better one decides the rule `encoder`, which knows classes that a client lacks.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import torch
from pyarrow import compute, parquet

from benchmarks.common import percent, summary_of, where
from protosphere.client_app.features.privacy_ledger import Asked, Ledger
from protosphere.models.encoder import public_encoder
from protosphere.prototypes.accounting import rho_of
from protosphere.prototypes.discrete_gaussian import draw
from protosphere.prototypes.release import Shape, class_sums, noisy

TASK = "alpha=0.1 rounds=20"
WAYS = 'partition="way-shot" ways=3 split="official" rounds=5 evaluate-every=5 models="tiny_cnn,tiny_perceptron"'
TEST_ROWS = 500  # of way-shot: an encoder takes one row at a time
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


def with_fewer_tests(dataset: str, folder: Path, classes: Sequence[int]) -> str:
    """A folder of parquet files with the first test rows alone, and of these classes alone where any are named."""
    for name in ("train", "test"):
        rows = parquet.read_table(Path(dataset) / f"{name}.parquet")
        if classes:
            rows = rows.filter(compute.is_in(rows["label"], pa.array(classes, rows["label"].type)))
            numbers = [classes.index(label) for label in rows["label"].to_pylist()]
            rows = rows.set_column(rows.column_names.index("label"), "label", pa.array(numbers, pa.int64()))
        parquet.write_table(rows[:TEST_ROWS] if name == "test" else rows, folder / f"{name}.parquet")
    for names in Path(dataset).glob("classes.txt"):
        words = names.read_text().splitlines()
        (folder / names.name).write_text("".join(f"{words[label]}\n" for label in classes or range(len(words))))
    return str(folder)


def table(rows: Mapping[str, str], settings: Sequence[str], clients: int, seeds: Sequence[int]) -> None:
    """Run the rows on the seeds; accuracy by rule, and beside it that on all classes where there is one."""
    print(f"\n{' '.join(settings)}\n", flush=True)
    print(f"| final accuracy in % | {' | '.join(RULES)} |\n|---|{'---|' * len(RULES)}", flush=True)
    for name, row in rows.items():
        runs = [summary_of([*settings, f"{row} seed={seed}"], clients, 1)["rules"] for seed in seeds]
        cells = []
        for rule in RULES:
            found = [run[rule] for run in runs if rule in run]
            beside = [each["all-classes"] for each in found if "all-classes" in each]
            cells.append(" / ".join(percent(of) for of in ([each["final"] for each in found], beside) if of) or "-")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--encoder", default="random")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["fedproto", "protonorm"], help="of which releases are made")
    parser.add_argument("--plain", nargs="+", default=["fedproto", "protonorm"], help="methods without privacy")
    parser.add_argument("--classes", type=int, nargs="+", default=[], help="these alone, where there are --shots")
    parser.add_argument("--shots", type=int, nargs="+", default=[], help="rows a class; the data are a folder then")
    parser.add_argument(
        "--dims",
        type=int,
        nargs="+",
        default=[],
        help="d; others than the first with the first --shots alone, and of what an encoder makes",
    )
    parser.add_argument("-c", "--set", action="append", default=[], help="settings, as `protosphere run` takes them")
    asked = parser.parse_args()
    release = f'privacy="release" privacy-measure=true privacy-encoder="{asked.encoder}"'
    rows = {name: f'strategy="{name}"' for name in ("local", "frame", *asked.plain)}
    encoded = {
        f"{name}, release ε {epsilon:g}": f'strategy="{name}" {release} privacy-epsilon={epsilon}'
        for name in asked.methods
        for epsilon in EPSILONS
    }
    for covariance in ("pooled", "identity"):
        counted = f'disclose-class-counts=true privacy-encoder="{asked.encoder}"'
        encoded[f"fedcgs, {covariance}"] = f'strategy="fedcgs" fedcgs.covariance="{covariance}" {counted}'
    print(where(), f"| {asked.clients} clients, seeds {asked.seeds}", flush=True)
    if not asked.shots:
        table(rows | encoded, [TASK, f'dataset="{asked.dataset}"', *asked.set], asked.clients, asked.seeds)
    with tempfile.TemporaryDirectory() as folder:
        data = with_fewer_tests(asked.dataset, Path(folder), asked.classes) if asked.shots else asked.dataset
        first, *others = asked.dims or [64]
        tables = [(first, shots, rows | encoded) for shots in asked.shots]
        tables += [(dim, shots, encoded) for dim in others for shots in asked.shots[:1]]
        for dim, shots, wanted in tables:
            settings = [WAYS, f'dataset="{data}" shots={shots} feature-dim={dim}', *asked.set]
            table(wanted, settings, asked.clients, asked.seeds)
    seconds()


if __name__ == "__main__":
    main()
