"""Every method on the same clients: accuracy by all rules beside what a user pays for it.

    python -m benchmarks.all_methods
    python -m benchmarks.all_methods --dataset ../cifar10 -c 'max-samples=8000 models="tiny_cnn4" rounds=10' \
        --jobs 2 --cells FOLDER

One architecture for all, since some methods average models; 20 clients, Dirichlet 0.1. Sorted by the payload of a
round, both ways and all clients. Seconds of the processor are the run's after its first round over its rounds,
evaluation by all rules among them, of a process of one thread a run. Settings are the methods' own defaults: nobody has
tuned any of them. With --cells each run's summary is kept, and what was cut short goes on where it was.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common import own_home, percent, where
from protosphere.core.settings import RECEIVED, RULES
from protosphere.strategies import METHODS

TASK = 'partition="dirichlet" alpha=0.1 rounds=20 models="tiny_cnn"'
FLOORS = ("local", "frame")
NEEDED = {"fedcgs": 'privacy-encoder="handcrafted" disclose-class-counts=true'}  # without which it does not run
SHOWN = ("classifier", RECEIVED, "local-prototypes", "global-prototypes", "discriminant")
SECONDS = "cpu_seconds"


@dataclass(frozen=True)
class Row:
    """A method's runs, a summary a seed."""

    method: str
    runs: Sequence[Mapping[str, Any]]

    @property
    def kilobytes(self) -> float:
        """Of payload a round, both ways, all clients."""
        return mean((r["bytes"]["payload_up"] + r["bytes"]["payload_down"]) / r["rounds"] for r in self.runs) / 1e3

    @property
    def seconds(self) -> float:
        """Of the processor a round."""
        return mean(run[SECONDS] for run in self.runs)

    @property
    def steps(self) -> float:
        """Gradient steps a client and round."""
        return mean(run["gradient_steps"] for run in self.runs)

    def accuracies(self, rule: str) -> list[float | None]:
        """Final test accuracy by a rule, a seed each; none where the method lacks it."""
        return [run["rules"][rule]["final"] for run in self.runs if rule in run["rules"]]

    @property
    def own(self) -> list[float | None]:
        """By the method's own rule."""
        return [run["rules"][run["headline"]["rule"]]["final"] for run in self.runs]


def run_one(method: str, seed: int, settings: Sequence[str], clients: int, cells: Path | None = None) -> dict[str, Any]:
    """The summary of one run in this process, with its seconds of the processor a round.

    Args:
        cells: where it is kept, and taken from if it is there.
    """
    cell = cells / f"{method}-{seed}.json" if cells else None
    if cell and cell.exists():
        return dict(json.loads(cell.read_text()))
    from protosphere.launch.grid import run_in_process
    from protosphere.launch.run_config import plan

    marks: list[float] = []

    def mark(line: str) -> None:
        if line.startswith("round "):
            marks.append(time.process_time())

    needed = NEEDED.get(method, "")
    wanted = plan([TASK, *settings, f'strategy="{method}" seed={seed} {needed}'], clients=clients)
    with own_home():
        folder = run_in_process(wanted.run_config, clients=clients, workers=1, show=mark)
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    summary |= {SECONDS: (marks[-1] - marks[0]) / (len(marks) - 1)}
    if cell:
        cell.write_text(json.dumps(summary))
    return summary


def table(rows: Sequence[Row]) -> str:
    """Markdown, cheapest first."""
    head = ["method", "its rule", "by it", *SHOWN, "kB a round", "steps a client and round", "CPU s a round"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for row in sorted(rows, key=lambda row: row.kilobytes):
        rule = row.runs[0]["headline"]["rule"]
        accuracies = [percent(row.own), *(percent(row.accuracies(name)) for name in SHOWN)]
        costs = f"{row.kilobytes:,.1f} | {row.steps:.4g} | {row.seconds:.2f}"
        lines.append(f"| {row.method} | {rule} | " + " | ".join(accuracies) + f" | {costs} |")
    return "\n".join(lines)


def verdict(rows: Sequence[Row]) -> str:
    """Which methods beat the floors on every seed, each by its own rule, and which do not."""
    of = {row.method: row.own for row in rows}
    said = []
    for floor in (name for name in FLOORS if name in of):
        others = [name for name in of if name not in FLOORS]
        better = [name for name in others if all((a or 0) > (b or 0) for a, b in zip(of[name], of[floor], strict=True))]
        worse = [name for name in others if all((a or 0) < (b or 0) for a, b in zip(of[name], of[floor], strict=True))]
        rest = [name for name in others if name not in (*better, *worse)]
        said.append(
            f"Against `{floor}` ({percent(of[floor])}), above on every seed: {', '.join(better) or 'none'}; below on "
            f"every seed: {', '.join(worse) or 'none'}; neither: {', '.join(rest) or 'none'}."
        )
    return "\n".join(said)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--cells", type=Path, metavar="FOLDER", help="keep each run's summary there, and go on from it")
    parser.add_argument("-c", "--set", action="append", default=[], help="settings that go before the ones above")
    options = parser.parse_args()
    settings = [f'dataset="{options.dataset}"', *options.set]
    print(f"{where()} | {options.clients} clients, seeds {options.seeds}, {TASK} {' '.join(settings)}\n", flush=True)
    cells = [(method, seed) for method in options.methods for seed in options.seeds]
    if options.cells:
        options.cells.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in options.methods}
    with contextlib.ExitStack() as stack:
        # a process for each run: none inherits what another has cached
        pool = stack.enter_context(
            ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1)
        )
        running = [
            pool.submit(run_one, method, seed, settings, options.clients, options.cells) for method, seed in cells
        ]
        for (method, seed), future in zip(cells, running, strict=True):
            summary = future.result()
            found[method].append(summary)
            accuracy = summary["headline"]["accuracy"]
            print(f"{method}, seed {seed}: {accuracy:.4f}, {summary[SECONDS]:.2f} CPU s a round", flush=True)
    rows = [Row(method, runs) for method, runs in found.items()]
    print(f"\n{table(rows)}\n\n{verdict(rows)}")
    floors = [run["floor"]["majority-class"] for row in rows for run in row.runs]
    print(f"Always a client's majority class: {percent(floors)}.")


if __name__ == "__main__":
    assert set(RULES) <= set(SHOWN)
    main()
