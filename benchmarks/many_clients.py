"""What a client costs a round as there are more of them: FedProto on the spiral, IID, states in memory or on disk.

    python -m benchmarks.many_clients --clients 200 1000 10000
    python -m benchmarks.many_clients --clients 200 1000 --points 600 --engines loop cohort

20,000 points an arm are dealt to all, or `--points` to each. Each number of clients is a process of its own. Seconds
of the processor are the rounds' after the first, whose work is another (states are made, data cached), over rounds and
clients; `from disk` keeps no state in memory, so that each comes from its file. `of bare steps` is a loop over the
batches of the first clients (benchmarks.bare_loop), after the run, whichever engine that had.
"""

import argparse
import json
import resource
import time
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import own_home, where

ARMS, DEALT = 6, 20_000  # of the spiral, and points of each
FEW = 50  # clients whose steps are taken alone
SETTINGS = 'strategy="fedproto" dataset="spiral" partition="iid" models="tiny_perceptron" evaluate-every=1'


def run_one(clients: int, points: int, rounds: int, from_disk: bool, engine: str) -> dict[str, float]:
    """Milliseconds of the processor a client-round, and of the steps alone; peak memory in MB, and MB on disk.

    Args:
        points: of an arm.
    """
    from benchmarks.bare_loop import of_steps
    from protosphere.launch.cohort_grid import CohortGrid
    from protosphere.launch.grid import LocalGrid, run_in_process
    from protosphere.launch.run_config import plan

    marks: list[float] = []

    def mark(line: str) -> None:
        if line.startswith("round "):
            marks.append(time.process_time())

    memory = 0 if from_disk else 1 << 20
    wanted = plan([f"{SETTINGS} spiral-points={points} rounds={rounds} state-memory={memory}"], clients=clients)
    with own_home() as home:
        grid_of = CohortGrid if engine == "cohort" else LocalGrid
        folder = run_in_process(wanted.run_config, clients=clients, workers=1, show=mark, grid_of=grid_of)
        assert json.loads((folder / "summary.json").read_text())["rounds"] == rounds
        sizes = [path.stat().st_size for path in Path(home).rglob("*") if path.is_file()]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        steps = 1e3 * of_steps(wanted.run_config, clients, FEW) / FEW
    each = [after - before for before, after in pairwise(marks)]
    return {"ms": 1e3 * median(each) / clients, "steps": steps, "memory": peak, "disk": sum(sizes) / 1e6}


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--points", type=int, default=0, help="of each client; 0: 20,000 an arm are dealt to all")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=1, help="processes for each row, in turns: the median")
    parser.add_argument("--from-disk", action="store_true", help="also without states in memory")
    parser.add_argument("--engines", nargs="+", choices=["loop", "cohort"], default=["loop"])
    options = parser.parse_args()
    print(f"{where()} | {SETTINGS} rounds={options.rounds}, median of {options.repeats}\n")
    print("| clients | engine | states | CPU ms a client-round | of bare steps | peak memory, MB | on disk, MB |")
    print("|---|---|---|---:|---:|---:|---:|")
    ways = list(product((False, True) if options.from_disk else (False,), options.engines))
    for clients in options.clients:
        points = options.points * clients // ARMS or DEALT
        found: dict[tuple[bool, str], list[dict[str, Any]]] = {way: [] for way in ways}
        for _, way in product(range(options.repeats), ways):
            with get_context("spawn").Pool(1) as pool:
                found[way].append(pool.apply(run_one, (clients, points, options.rounds, *way)))
        for (from_disk, engine), runs in found.items():
            ms, steps, memory, disk = (median(each[name] for each in runs) for name in runs[0])
            row = f"{ms:.1f} | {steps:.1f} | {memory:,.0f} | {disk:,.0f}"
            print(f"| {clients:,} | {engine} | {'on disk' if from_disk else 'in memory'} | {row} |", flush=True)


if __name__ == "__main__":
    main()
