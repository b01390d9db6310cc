"""PFPL's personalised prototypes: all clients of a class in one product, against a loop over clients.

Run from the repository root: python -m benchmarks.personalisation
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Mapping

import torch

from benchmarks.common import where
from protosphere.prototypes.personalisation import EPSILON, WEIGHTINGS, personalise
from protosphere.prototypes.prototype_set import PrototypeSet

REPETITIONS = 5
ALPHA = 0.5


def uploads(clients: int, K: int, d: int) -> dict[int, PrototypeSet]:
    """Float32 prototypes of all classes from every client."""
    generator = torch.Generator().manual_seed(0)
    return {i: PrototypeSet(torch.arange(K), torch.randn(K, d, generator=generator)) for i in range(clients)}


def by_client(sets: Mapping[int, PrototypeSet], clients: list[int], weighting: str) -> dict[int, PrototypeSet]:
    """Eq. 4 for some of the clients, one client and class at a time, over all others at once; in float64 as well."""
    found = {}
    for i in clients:
        own, mixed = sets[i].vectors.double(), []
        for k in range(len(own)):
            others = torch.stack([each.vectors[k] for m, each in sets.items() if m != i]).double()
            squares = (others - own[k]).square().sum(dim=1)
            weights = 1 / (squares + EPSILON) if weighting == "similarity" else squares
            mixed.append(ALPHA * own[k] + (1 - ALPHA) * (weights / weights.sum()) @ others)
        found[i] = sets[i].with_vectors(torch.stack(mixed).float())
    return found


def main() -> None:
    """Print both ways' seconds, how far they agree, and the process's peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--looped", type=int, default=20, help="clients of the loop, whose time is scaled up to all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sets = uploads(options.clients, options.classes, options.dim)
    some = list(sets)[:: max(1, options.clients // options.looped)]
    print(f"{where()}, {options.threads} thread(s); median of {REPETITIONS} (range)")
    print(f"{options.clients} clients x {options.classes} classes x d = {options.dim}; before: {_peak():.2f} GB")
    for weighting in WEIGHTINGS:
        products, loops = [], []
        for _ in range(REPETITIONS):
            began = time.perf_counter()
            found = personalise(sets, ALPHA, weighting)
            products.append(time.perf_counter() - began)
            began = time.perf_counter()
            expected = by_client(sets, some, weighting)
            loops.append((time.perf_counter() - began) * len(sets) / len(some))
        apart = max(float((found[i].vectors - expected[i].vectors).abs().max()) for i in some)
        ratios = sorted(loop / product for loop, product in zip(loops, products, strict=True))
        print(
            f"  {weighting:10s} one product {_span(products)}; loop over clients {_span(loops)} (scaled up from "
            f"{len(some)}); {statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} to {ratios[-1]:.1f}); "
            f"at most {apart:.0e} apart; peak {_peak():.2f} GB"
        )


def _span(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
