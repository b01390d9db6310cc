"""GFPL's mathematics: batched EM against a loop over scikit-learn from the same start, and a large fusion.

Run from the repository root: python -m benchmarks.mixture
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.common import where
from protosphere.prototypes.mixture import LEAST_FLOOR, RELATIVE_FLOOR, fit_class_mixtures, fuse
from protosphere.prototypes.mixture_set import MixtureSet

REPETITIONS = 5
CLASSES, SAMPLES, DIM, COMPONENTS = 100, 500, 128, 4
CLIENTS, THRESHOLD = 200, 0.1  # per dimension; nearest neighbours below are at about 0.03


def features_of_clusters() -> tuple[Tensor, Tensor]:
    """float64 (classes · samples, d), each class of four clusters that overlap, and labels."""
    generator = torch.Generator().manual_seed(0)
    centres = 0.5 * torch.randn(CLASSES, COMPONENTS, DIM, generator=generator, dtype=torch.float64)
    which = torch.randint(COMPONENTS, (CLASSES, SAMPLES), generator=generator)
    noise = torch.randn(CLASSES, SAMPLES, DIM, generator=generator, dtype=torch.float64)
    features = centres[torch.arange(CLASSES).unsqueeze(1), which] + noise
    return features.flatten(0, 1), torch.arange(CLASSES).repeat_interleave(SAMPLES)


def loop_over_scikit_learn(features: Tensor, start: MixtureSet) -> tuple[float, int]:
    """Mean log-likelihood per sample and iterations of all classes, one model after the other."""
    values, iterations = [], 0
    for label in range(CLASSES):
        rows = features[label * SAMPLES : (label + 1) * SAMPLES].numpy()
        own = slice(label * COMPONENTS, (label + 1) * COMPONENTS)
        model = GaussianMixture(
            COMPONENTS,
            covariance_type="diag",
            reg_covar=max(RELATIVE_FLOOR * float(rows.var(axis=0).mean()), LEAST_FLOOR),
            weights_init=start.weights[own].numpy(),
            means_init=start.means[own].numpy(),
            precisions_init=(1 / start.variances[own]).numpy(),
        ).fit(rows)
        values.append(model.lower_bound_)
        iterations += model.n_iter_
    return float(np.mean(values, dtype=np.float64)), iterations


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def expectation_maximisation(dtype: torch.dtype, devices: list[str]) -> None:
    features, labels = features_of_clusters()
    start = fit_class_mixtures(features, labels, COMPONENTS, seed=0, max_iterations=0).mixtures.to(dtype=dtype)
    features = features.to(dtype)
    fits = {}
    for device in devices:
        there, classes = features.to(device), labels.to(device)
        for name, given in (("the same start", start), ("a start of its own", None)):

            def fit(there: Tensor = there, classes: Tensor = classes, given: MixtureSet | None = given) -> object:
                return fit_class_mixtures(there, classes, COMPONENTS, 0, start=given, dtype=dtype)

            fits[f"batched, {device}, {name}"] = fit
    value, iterations = loop_over_scikit_learn(features, start)
    found = {name: fit() for name, fit in fits.items()}
    # by turns, so that what else the machine does meets all alike
    times: dict[str, list[float]] = {name: [] for name in ("scikit-learn", *fits)}
    for _ in range(REPETITIONS):
        times["scikit-learn"].append(seconds(lambda: loop_over_scikit_learn(features, start)))
        for name, fit in fits.items():
            times[name].append(seconds(fit))
    base = statistics.median(times["scikit-learn"])
    print(f"EM, {dtype}: {CLASSES} classes x {SAMPLES} samples, d = {DIM}, n = {COMPONENTS}")
    print(f"  {'loop over scikit-learn':36} {1000 * base:7.0f} ms  {iterations} iterations, log-likelihood {value:.4f}")
    for name, fit in found.items():
        own = float(fit.log_likelihood.mean())
        median = statistics.median(times[name])
        ratios = [one / other for one, other in zip(times["scikit-learn"], times[name], strict=True)]
        print(
            f"  {name:36} {1000 * median:7.0f} ms  {int(fit.iterations.sum())} iterations, log-likelihood {own:.4f} "
            f"({abs(own / value - 1):.0e} apart); {base / median:.2f} times as fast "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


def clients_of_one_federation(spread: float) -> dict[int, MixtureSet]:
    """Float32 mixtures of all classes from every client, their means near eight places a class."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(CLASSES, 8, DIM, generator=generator)
    rows = CLASSES * COMPONENTS
    labels = torch.arange(CLASSES).repeat_interleave(COMPONENTS)
    clients = {}
    for partition in range(CLIENTS):
        which = torch.randint(8, (CLASSES, COMPONENTS), generator=generator)
        means = places[torch.arange(CLASSES).unsqueeze(1), which].flatten(0, 1)
        means = means + spread * torch.randn(rows, DIM, generator=generator)
        variances = 0.5 + torch.rand(rows, DIM, generator=generator)
        weights = 0.1 + torch.rand(CLASSES, COMPONENTS, generator=generator)
        weights = (weights / weights.sum(dim=1, keepdim=True)).flatten()
        clients[partition] = MixtureSet(labels, means, variances, weights)
    return clients


def seconds_and_peak(threshold: float, threads: int) -> tuple[float, float, float, int]:
    """Seconds, the process's peak memory in GB before fusion and after it, and components after."""
    unit = 1 if sys.platform == "darwin" else 1024
    torch.set_num_threads(threads)
    clients = clients_of_one_federation(spread=0.3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    fused = fuse(clients, threshold)
    spent = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return spent, before * unit / 1e9, peak * unit / 1e9, len(fused)


def fusion(threads: int) -> None:
    print(f"Fusion: {CLIENTS} clients x {COMPONENTS} components x {CLASSES} classes, d = {DIM}, once each")
    for threshold in (THRESHOLD, 0.0):
        # a process of its own, so that nothing else counts as its peak
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            spent, before, peak, left = child.submit(seconds_and_peak, threshold, threads).result()
        print(
            f"  S_C = {threshold:3} per dimension {spent:6.1f} s, peak {peak:.2f} GB ({before:.2f} GB before it, "
            f"for torch and the uploads); {CLIENTS * COMPONENTS * CLASSES} components become {left}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1, help="of torch and of BLAS")
    parser.add_argument("--parts", nargs="+", choices=("em", "fusion"), default=["em", "fusion"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"GFPL's mixtures, {arguments.threads} thread(s), median of {REPETITIONS} for EM; {where()}")
    if "em" in arguments.parts:
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        with threadpool_limits(limits=arguments.threads):
            for dtype in (torch.float32, torch.float64):
                expectation_maximisation(dtype, devices)
    if "fusion" in arguments.parts:
        fusion(arguments.threads)


if __name__ == "__main__":
    main()
