"""Memory and time of a server that adds weights up: uploads of a million values, in order and reversed.

    python -m benchmarks.sums
    python -m benchmarks.sums --uploads 1000 --repeats 1        (8 GB are written, twice read)

Each number of uploads in a process of its own: `peak` is how far its memory rose above what the program had before the
first upload. Uploads wait in files of a temporary folder and are added in ascending order of partitions.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import where
from protosphere.core.settings import Settings
from protosphere.prototypes.weights import Weights, flat
from protosphere.record.uploads import Scratch, Waiting
from protosphere.strategies import read_settings
from protosphere.strategies.contract import ServerHalf
from protosphere.wire.codec import Codec
from protosphere.wire.payloads import Identity, Parts
from protosphere.wire.weights import layout_lines

REPEATS = 5
ROW = 1000  # values of a tensor's row


def server_of(clients: int, values: int) -> ServerHalf:
    """FedAvg's server half, which knows its clients."""
    run = read_settings({"strategy": "fedavg"})
    half = run.method.server(run.settings, run.options)
    lines = tuple(layout_lines("extractor", (("extractor.weight", (values // ROW, ROW)),)))
    identities = {p: Identity(p, clients, "net", rows=(p % 7 + 1, 0, 0), layouts=lines) for p in range(clients)}
    half.meet(Codec(2, Settings().feature_dim), identities)
    return half


def upload(partition: int, values: int) -> Parts:
    """A client's million values."""
    random = torch.Generator().manual_seed(partition)
    tensor = torch.randn(values // ROW, ROW, generator=random)
    return Parts({"extractor": Weights({"extractor.weight": tensor})})


def measured(clients: int, values: int, answer: "multiprocessing.Queue[tuple[float, float, bool]]") -> None:
    """MB of peak, seconds of adding up, and whether both orders of arrival gave the same bits."""
    half = server_of(clients, values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    means, seconds = [], []
    for order in (range(clients), reversed(range(clients))):
        with tempfile.TemporaryDirectory() as folder:
            scratch = Scratch(Path(folder))
            for partition in order:
                scratch.put(partition, upload(partition, values))
            began = time.perf_counter()
            means.append(flat(half.aggregate(Waiting(scratch, range(clients)), {}, 1).downloads[0]["extractor"]))
            seconds.append(time.perf_counter() - began)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    answer.put((peak, min(seconds), bool(torch.equal(*means))))


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    print(f"{where()} | uploads of {options.values:,} float32 values, median of {options.repeats}\n")
    print("| uploads | peak | adding up | an upload | both orders alike |\n|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for clients in options.uploads:
        found = []
        for _ in range(options.repeats):
            answer: multiprocessing.Queue[tuple[float, float, bool]] = context.Queue()
            process = context.Process(target=measured, args=(clients, options.values, answer))
            process.start()
            found.append(answer.get())
            process.join()
        peak, seconds = median(each[0] for each in found), median(each[1] for each in found)
        alike = all(each[2] for each in found)
        print(
            f"| {clients} | {peak:.0f} MB | {seconds:.2f} s | {1e3 * seconds / clients:.1f} ms | {alike} |", flush=True
        )


if __name__ == "__main__":
    main()
