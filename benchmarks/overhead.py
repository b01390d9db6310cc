"""What a client-round costs besides training and evaluation: message, store, data, scheduling.

    python -m benchmarks.overhead

On the demo (digits, ten clients): (wall of round 2 x workers - sum of training and evaluation seconds) / clients,
by `flwr run` over Ray with two workers, and in this process with one. Target: under 50 ms.
"""

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.common import own_home, where
from experiments.runtime.grid import run_in_process
from experiments.runtime.launch import launch

CLIENTS = 10


def overhead(folder: Path, workers: int) -> float:
    """Seconds a client in round 2."""
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])
    time = line["time"]
    work = sum(time["train"].values()) + sum(time["evaluate"].values())
    return (time["round"] * workers - work) / CLIENTS


def main() -> None:
    """Print both medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    config = {"rounds": 3, "clients": CLIENTS}
    print(where())
    with own_home():
        in_process, ray = [], []
        for _ in range(repetitions):
            in_process.append(overhead(run_in_process(config, clients=CLIENTS, show=lambda line: None), 1))
            outcome = launch(config, clients=CLIENTS, show=lambda line: None)
            if not outcome.ok or outcome.folder is None:
                raise SystemExit(f"the run failed: {outcome.message}")
            ray.append(overhead(outcome.folder, 2))
    for name, seconds in (("in process, 1 worker", in_process), ("flwr run, 2 workers", ray)):
        median, low, high = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{name}: {1000 * median:.1f} ms a client in round 2 (min {1000 * low:.1f}, max {1000 * high:.1f})")


if __name__ == "__main__":
    main()
