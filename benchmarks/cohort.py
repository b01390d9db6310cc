"""Training clients in one stacked step against one after the other: the ratio of both, interleaved.

    python -m benchmarks.cohort
    python -m benchmarks.cohort --device cuda --models tiny_cnn resnet8 --clients 20 100

FedProto's loss on made-up rows, one epoch; training and its prototypes, without what a round does around it. CPU
seconds on a CPU; on CUDA seconds, the cohort with its graphs and without. Uneven clients have 1 to 40 batches each.
`loop / the least` is what stacking could bring at most: the prototypes, which each client measures alone, and the
products of the layers' matrices and nothing else, ten clients at a time, which the cache holds. Of linear layers only.
"""

import argparse
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import nn

from benchmarks.common import where
from protosphere.client_app.cohort import Cohorts
from protosphere.client_app.state import lay_out, new_state
from protosphere.client_app.train import Job, measured
from protosphere.core.seeds import limited_threads
from protosphere.data.client_data import ClientData, InputTransform, Rows
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies import read_settings

CLASSES = 10
Act = Callable[[list[Job]], None]
AT_ONCE = 10  # clients whose weights a cache of a megabyte or two holds


def job_of(model: str, client: int, batches: int, size: int, side: int, device: torch.device) -> Job:
    """A client with so many batches, in its second round."""
    shape = (1, side, side)
    run = read_settings({"strategy": "fedproto", "models": model, "batch-size": size, "feature-dim": 64})
    objective = run.method.objective(run.settings, run.options, CLASSES)
    random, number = torch.Generator().manual_seed(client), batches * size
    inputs = torch.randint(256, (number, *shape), dtype=torch.uint8, generator=random)
    rows = Rows(inputs.to(device), torch.randint(CLASSES, (number,), generator=random).to(device))
    transform = InputTransform(255.0, (0.5,), (0.5,), shape)
    state = new_state(objective, model, shape, client, device)
    targets = PrototypeSet(torch.arange(CLASSES), torch.randn(CLASSES, 64, generator=random))
    lay_out(objective, state, targets, device)
    data = ClientData(rows, rows, rows, tuple("0123456789"), transform)
    return Job(objective, state, data, (0, "client", client, "round", 2), 2, model)


def seconds(act: Callable[[], object], device: torch.device) -> float:
    """Of a call: of the CPU, and on CUDA until the device is done."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def one_by_one(jobs: list[Job]) -> None:
    """The loop."""
    for job in jobs:
        job.alone()


def together(graphs: bool, jobs: list[Job]) -> None:
    """The cohort."""
    for _ in Cohorts(refused, graphs)(jobs):
        pass


def least(jobs: list[Job]) -> None:
    """What stacking cannot save."""
    for job in jobs:
        measured(job.objective, job.state, job.data, job.round_number, {}, 0, 0.0)
    size = jobs[0].objective.settings.batch_size
    steps = sum(len(job.data.train) // size for job in jobs)
    layers = [layer for layer in jobs[0].state.module.modules() if isinstance(layer, nn.Linear)]
    for place, layer in enumerate(layers):
        x, z = torch.randn(AT_ONCE, size, layer.in_features), torch.randn(AT_ONCE, size, layer.out_features)
        weights = torch.randn(AT_ONCE, layer.out_features, layer.in_features)
        for _ in range(steps // AT_ONCE):
            torch.bmm(x, weights.mT)
            torch.bmm(z.mT, x)
            # the rows have no gradient
            if place:
                torch.bmm(z, weights)


def refused(model: str, reason: str) -> None:
    """A cohort that is none would be compared with itself."""
    raise SystemExit(f"{model} cannot be stacked: {reason}")


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny_perceptron", "tiny_cnn"])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=8, help="of the square rows, pixels")
    parser.add_argument("--batches", type=int, default=20, help="of an even client; an uneven one has up to twice that")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one thread"
    print(f"{where()} | {name} | median of {options.repeats}, each interleaved\n")
    on_cuda = device.type == "cuda"
    ways: dict[str, Act] = {"cohort": partial(together, False)}
    ways |= {"cohort with graphs": partial(together, True)} if on_cuda else {"the least": least}
    print("| model | clients | ms a client-step, loop | " + " | ".join(f"loop / {way}" for way in ways) + " |")
    print("|---" * (3 + len(ways)) + "|")
    with limited_threads(1):
        for model in options.models:
            for clients in options.clients:
                for even in (True, False):
                    numbers = [
                        options.batches if even else 1 + 7 * client % (2 * options.batches) for client in range(clients)
                    ]
                    row(model, numbers, options, ways, device)


def row(
    model: str, batches: list[int], options: argparse.Namespace, ways: dict[str, Act], device: torch.device
) -> None:
    """One line of the table; `batches` of each client."""
    size, side = options.batch_size, options.side
    jobs = [job_of(model, client, number, size, side, device) for client, number in enumerate(batches)]
    linear = not any(isinstance(layer, nn.Conv2d) for layer in jobs[0].state.module.modules())
    timed: dict[str, Act] = {"loop": one_by_one} | {way: act for way, act in ways.items() if linear or act is not least}
    found: dict[str, list[float]] = {way: [] for way in timed}
    for repeat in range(options.repeats + 1):
        for way, act in timed.items():
            fresh = [replace(job, state=deepcopy(job.state)) for job in jobs]
            taken = seconds(partial(act, fresh), device)
            # the first warms up
            if repeat:
                found[way].append(taken)
    loop = found["loop"]
    ratios = [
        f"{median(one / other for one, other in zip(loop, found[way], strict=True)):.1f}" if way in found else "-"
        for way in ways
    ]
    step = 1e3 * median(loop) / sum(batches)
    kind = "" if len(set(batches)) == 1 else " uneven"
    print(
        f"| {model} | {len(batches)}{kind} | {step:.2f} | " + " | ".join(ratios) + " |",
        flush=True,
    )


if __name__ == "__main__":
    main()
