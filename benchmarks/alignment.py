"""Prototype alignment: time against the K x K x d computation, memory at 10,000 classes, distance of the simplex.

Run from the repository root: python -m benchmarks.alignment
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
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from protosphere.prototypes.alignment import align

REPETITIONS = 5


def random_prototypes(K: int, d: int) -> Tensor:
    return torch.randn(K, d, generator=torch.Generator().manual_seed(0))


def thomson_by_differences(points: NDArray[np.float64], iterations: int) -> NDArray[np.float64]:
    """Algorithm 1 of ProtoNorm with every difference of two prototypes held in an array (K, K, d)."""
    velocity = np.zeros_like(points)
    for iteration in range(iterations):
        offsets = points[:, None, :] - points[None, :, :]
        squares = np.square(offsets).sum(axis=2)
        np.fill_diagonal(squares, np.inf)
        force = (offsets / squares[:, :, None]).sum(axis=1)
        velocity = 0.9 * velocity + 0.1 * 0.95 ** (iteration // 10) * force
        points = points + velocity
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points


def speed(K: int, d: int, iterations: int) -> None:
    prototypes = random_prototypes(K, d).double()
    directions = torch.nn.functional.normalize(prototypes).numpy()
    ours, naive = [], []
    with threadpool_limits(limits=1):
        for _ in range(REPETITIONS):
            start = time.perf_counter()
            result = align(prototypes, "thomson", iterations=iterations)
            middle = time.perf_counter()
            expected = thomson_by_differences(directions, iterations)
            ours.append(middle - start)
            naive.append(time.perf_counter() - middle)
    apart = np.abs(result.points.numpy() - expected).max()
    ratio = statistics.median(naive) / statistics.median(ours)
    print(f"thomson, {iterations} iterations, K = {K}, d = {d}, one BLAS thread, median of {REPETITIONS}")
    print(f"  Gram matrix          {statistics.median(ours):8.3f} s")
    print(f"  K x K x d arrays     {statistics.median(naive):8.3f} s   largest difference {apart:.0e}")
    print(f"  ratio                {ratio:8.1f}     target: at least 20")


def one_iteration(K: int, d: int) -> tuple[float, float]:
    """Seconds of one iteration (the measurements of its result included) and the peak memory of this process, GB."""
    prototypes = random_prototypes(K, d)
    start = time.perf_counter()
    align(prototypes, "thomson", iterations=1)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def memory(K: int, d: int) -> None:
    # a process of its own, so that nothing else counts as its peak
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
        seconds, peak = child.submit(one_iteration, K, d).result()
    print(f"thomson, one iteration, K = {K}, d = {d}, once")
    print(f"  peak memory          {peak:8.2f} GB  target: under 3")
    print(f"  seconds              {seconds:8.1f}")


def distance(K: int, d: int) -> None:
    prototypes = random_prototypes(K, d)
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        result = align(prototypes, "simplex")
        times.append(time.perf_counter() - start)
    closest = float(torch.pdist(result.points.double()).min()) / np.sqrt(2 * K / (K - 1))
    print(f"simplex, K = {K}, d = {d}, float32 prototypes")
    print(f"  least distance       {closest:.8f}     of the bound; target: at least 0.99999")
    print(f"  seconds              {statistics.median(times):8.3f}     median of {REPETITIONS}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--classes", type=int, default=100, help="K of the comparison and of the simplex")
    parser.add_argument("--many-classes", type=int, default=10_000, help="K of the memory measurement")
    parser.add_argument("--dim", type=int, default=512, help="d")
    parser.add_argument("--iterations", type=int, default=100)
    arguments = parser.parse_args()
    memory(arguments.many_classes, arguments.dim)
    speed(arguments.classes, arguments.dim, arguments.iterations)
    distance(arguments.classes, arguments.dim)


if __name__ == "__main__":
    main()
