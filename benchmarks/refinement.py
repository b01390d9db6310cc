"""FedPAGR's refinement: class sums and one Gram matrix against a loop over clients and K x K x d products.

Run from the repository root: python -m benchmarks.refinement
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.common import where
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.refinement import class_sums, mean_directions, refine

REPETITIONS = 5
BLOCK = 50  # rows whose products with all others are held at once: with all of them, K = 1000 would take 4 GB
LEARNING_RATE, MOMENTUM, SEPARATION_WEIGHT, MARGIN = 0.01, 0.9, 0.5, 0.3


def uploads(clients: int, K: int, d: int) -> list[PrototypeSet]:
    """Float32 prototypes of about half the classes each, crowded enough that separation has work."""
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(K, d, generator=generator)) + normalize(torch.ones(1, d))
    sets = []
    for _ in range(clients):
        labels = (torch.rand(K, generator=generator) < 0.5).nonzero().flatten()
        noise = normalize(torch.randn(len(labels), d, generator=generator))
        sets.append(PrototypeSet(labels, normalize(centres[labels] + 0.5 * noise)))
    return sets


def refined_by_products(sets: Sequence[PrototypeSet], start: Tensor, steps: int) -> Tensor:
    """The same steps with the gradient taken client by client and from the products of every two prototypes."""
    free, velocity = start.double(), torch.zeros_like(start, dtype=torch.float64)
    units = [normalize(each.vectors.double()) for each in sets]
    for _ in range(steps):
        lengths = free.norm(dim=1, keepdim=True)
        points = free / lengths
        outer = torch.zeros_like(points)
        for each, rows in zip(sets, units, strict=True):
            outer[each.labels] -= rows
        for first in range(0, len(points), BLOCK):
            block = points[first : first + BLOCK]
            above = (block[:, None] * points[None]).sum(dim=2) > MARGIN
            own = torch.arange(len(block))
            above[own, first + own] = False
            outer[first : first + BLOCK] += 2 * SEPARATION_WEIGHT * (above[:, :, None] * points[None]).sum(dim=1)
        gradient = (outer - (outer * points).sum(dim=1, keepdim=True) * points) / lengths
        velocity = MOMENTUM * velocity + gradient
        free = free - LEARNING_RATE * velocity
    return normalize(free)


def speed(clients: int, K: int, d: int, steps: int) -> None:
    sets = uploads(clients, K, d)
    previous = normalize(torch.randn(K, d, generator=torch.Generator().manual_seed(1)))
    start = mean_directions(*class_sums(sets, K), previous)
    ours, naive = [], []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        found = refine(
            start,
            *class_sums(sets, K),
            steps=steps,
            learning_rate=LEARNING_RATE,
            momentum=MOMENTUM,
            separation_weight=SEPARATION_WEIGHT,
            margin=MARGIN,
        )
        middle = time.perf_counter()
        expected = refined_by_products(sets, start, steps)
        ours.append(middle - began)
        naive.append(time.perf_counter() - middle)
    apart = float((found.points.double() - expected).abs().max())
    print(f"K = {K}, d = {d}, {clients} clients, {steps} steps")
    print(f"  sums and Gram matrix     {1000 * statistics.median(ours):9.1f} ms")
    print(f"  loop and K x K x d       {1000 * statistics.median(naive):9.1f} ms  largest difference {apart:.0e}")
    print(f"  ratio                    {statistics.median(naive) / statistics.median(ours):9.1f}")
    print(f"  separation               {found.before.separation:9.1f} before, {found.after.separation:.1f} after")
    print(
        f"  largest cosine           {found.before.largest_cosine:9.3f} before, {found.after.largest_cosine:.3f} after"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000], help="K")
    parser.add_argument("--dim", type=int, default=512, help="d")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="T")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"FedPAGR's refinement, {arguments.threads} thread(s), median of {REPETITIONS}; {where()}")
    for K in arguments.classes:
        speed(arguments.clients, K, arguments.dim, arguments.steps)


if __name__ == "__main__":
    main()
