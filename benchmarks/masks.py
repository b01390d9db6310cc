"""Class masks: seconds and least Hamming distance of the search, beside the best of many random balanced draws.

Run from the repository root: python -m benchmarks.masks
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import where
from protosphere.prototypes.masks import class_masks

Masks = NDArray[np.bool_]

SIZES = ((10, 500, 50), (100, 500, 50), (200, 500, 50), (1000, 500, 50))
SEEDS = 5
SEEDS_FROM_1000_CLASSES = 3


def least_distance(masks: Masks) -> int:
    ones = masks.astype(np.float32)
    overlaps = ones @ ones.T
    own = int(overlaps[0, 0])
    np.fill_diagonal(overlaps, 0)
    return 2 * (own - int(overlaps.max()))


def balanced_draw(K: int, d: int, s: int, rng: np.random.Generator) -> Masks:
    """Random masks; then ones of random rows move from the fullest to the emptiest column until all are even."""
    masks = np.zeros((K, d), dtype=bool)
    np.put_along_axis(masks, rng.random((K, d)).argsort(axis=1)[:, :s], True, axis=1)
    counts = masks.sum(axis=0)
    while np.ptp(counts) > 1:
        full, empty = counts.argmax(), counts.argmin()
        row = rng.choice(np.flatnonzero(masks[:, full] & ~masks[:, empty]))
        masks[row, [full, empty]] = False, True
        counts[full] -= 1
        counts[empty] += 1
    return masks


def compare(K: int, d: int, s: int, draws: int) -> str:
    """One row of the table."""
    times, distances = [], []
    seeds = SEEDS if K < 1000 else SEEDS_FROM_1000_CLASSES
    for seed in range(seeds):
        start = time.perf_counter()
        masks = class_masks(K, d, s, seed)
        times.append(time.perf_counter() - start)
        distances.append(least_distance(masks.numpy()))
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    best = max(least_distance(balanced_draw(K, d, s, rng)) for _ in range(draws))
    seconds = time.perf_counter() - start
    counts = np.full(d, K * s // d) + (np.arange(d) < K * s % d)
    bound = 2 * (counts * (K - counts)).sum() / (K * (K - 1))
    cells = f"{min(distances)} | {statistics.median(times):.2f} (of {seeds}) | {best} | {seconds:.1f} | {bound:.2f}"
    return f"| {K}, {d}, {s} | {cells} |"


def seconds_and_peak(K: int, d: int, s: int) -> tuple[float, float, int]:
    """Seconds, GB that the search adds to this process's peak memory, and the least distance."""
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    masks = class_masks(K, d, s, seed=0)
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit / 1e9
    return seconds, peak, least_distance(masks.numpy())


def many_classes(K: int, d: int, s: int) -> None:
    # a process of its own, so that nothing else counts as its peak
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
        seconds, peak, least = child.submit(seconds_and_peak, K, d, s).result()
    print(f"\nK, d, s = {K}, {d}, {s}, once: {seconds:.1f} s, {peak:.2f} GB of memory, least distance {least}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=100, help="random balanced draws of the baseline")
    parser.add_argument("--many-classes", type=int, default=10_000, help="K of the memory measurement")
    arguments = parser.parse_args()
    print(f"{where()}; one BLAS thread\n")
    print(
        f"| K, d, s | least distance, worst seed | s, median | best of {arguments.draws} draws | s, all draws "
        "| highest mean distance |\n|---|---|---|---|---|---|"
    )
    with threadpool_limits(limits=1):
        for K, d, s in SIZES:
            print(compare(K, d, s, arguments.draws), flush=True)
    many_classes(arguments.many_classes, 500, 50)


if __name__ == "__main__":
    main()
