"""Training clients in one stacked step against one after the other: the ratio of both, interleaved.

    python -m benchmarks.cohort
    python -m benchmarks.cohort --device cuda --models tiny_cnn resnet8 --clients 20 100

FedProto's loss on made-up rows, one epoch; training and its prototypes, without what a round does around it. CPU
seconds on a CPU; seconds by the clock on CUDA. Uneven clients have 1 to 40 batches each.
`loop / the least` is what stacking could bring at most: the prototypes, which each client measures alone, and the
products of the layers' matrices and nothing else, ten clients at a time, which the cache holds. Of linear layers only.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from statistics import median

import torch
from torch import nn

from benchmarks.common import described_parser, table_head, table_row, where
from protosphere.client_app.cohort import Cohorts
from protosphere.client_app.store import lay_out, new_state
from protosphere.client_app.train import Job, measured
from protosphere.core.seeds import limited_threads
from protosphere.data.client_data import ClientData, InputTransform, Rows
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies import read_settings

CLASSES, DIM = 10, 64
AT_ONCE = 10  # clients whose weights a cache of a megabyte or two holds


def job_of(options: argparse.Namespace, model: str, client: int, batches: int) -> Job:
    """A client with so many batches, in its second round."""
    shape, device, rows = (1, options.side, options.side), options.device, batches * options.batch_size
    run = read_settings({"strategy": "fedproto", "models": model, "batch-size": options.batch_size, "feature-dim": DIM})
    objective = run.method.objective(run.settings, run.options, CLASSES)
    random = torch.Generator().manual_seed(client)
    inputs = torch.randint(256, (rows, *shape), dtype=torch.uint8, generator=random)
    samples = Rows(inputs.to(device), torch.randint(CLASSES, (rows,), generator=random).to(device))
    state = new_state(objective, model, shape, client, device)
    targets = PrototypeSet(torch.arange(CLASSES), torch.randn(CLASSES, DIM, generator=random))
    lay_out(objective, state, {"prototypes": targets}, device)
    transform = InputTransform(255.0, (0.5,), (0.5,), shape)
    data = ClientData(samples, samples, samples, tuple("0123456789"), transform)
    return Job(objective, state, data, (0, "client", client, "round", 2), 2, model)


def one_by_one(jobs: Sequence[Job]) -> None:
    """The loop."""
    for job in jobs:
        job.alone()


def together(jobs: Sequence[Job]) -> None:
    """The cohort."""
    for _ in Cohorts(refuse)(jobs):
        pass


def refuse(model: str, reason: str) -> None:
    """A cohort that is none would be compared with itself."""
    raise SystemExit(f"{model} cannot be stacked: {reason}")


def least(jobs: Sequence[Job]) -> None:
    """What stacking cannot save."""
    for job in jobs:
        measured(job.objective, job.state, job.data, job.round_number, {}, 0, 0.0)
    size = jobs[0].objective.settings.batch_size
    steps = sum(len(job.data.train) // size for job in jobs)
    layers = [layer for layer in jobs[0].state.module.modules() if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        x, z = torch.randn(AT_ONCE, size, layer.in_features), torch.randn(AT_ONCE, size, layer.out_features)
        weights = torch.randn(AT_ONCE, layer.out_features, layer.in_features)
        for _ in range(steps // AT_ONCE):
            torch.bmm(x, weights.mT)
            torch.bmm(z.mT, x)
            # the rows have no gradient
            if number:
                torch.bmm(z, weights)


def seconds(train: Callable[[Sequence[Job]], None], jobs: Sequence[Job], device: torch.device) -> float:
    """Of one training: of the CPU, and on CUDA until the device is done."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    copies = [replace(job, state=deepcopy(job.state)) for job in jobs]
    began = clock()
    train(copies)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def row(
    jobs: Sequence[Job], ways: Mapping[str, Callable[[Sequence[Job]], None]], repeats: int, device: torch.device
) -> list[str]:
    """Milliseconds a client-step by the loop, and the loop's seconds over those of each way."""
    linear = not any(isinstance(layer, nn.Conv2d) for layer in jobs[0].state.module.modules())
    trained = {"loop": one_by_one} | {name: way for name, way in ways.items() if linear or way is not least}
    # the first warms up
    turns = [{name: seconds(way, jobs, device) for name, way in trained.items()} for _ in range(repeats + 1)][1:]
    steps = sum(len(job.data.train) // job.objective.settings.batch_size for job in jobs)
    ratios = [f"{median(t['loop'] / t[name] for t in turns):.1f}" if name in trained else "-" for name in ways]
    return [f"{1e3 * median(turn['loop'] for turn in turns) / steps:.2f}", *ratios]


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["tiny_perceptron", "tiny_cnn"])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=8, help="of the square rows, pixels")
    parser.add_argument("--batches", type=int, default=20, help="of an even client; an uneven one has up to twice that")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device, most = options.device, 2 * options.batches
    on_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_cuda else "one thread"
    print(f"{where()} | {name} | median of {options.repeats}, interleaved\n")
    ways: dict[str, Callable[[Sequence[Job]], None]] = {"cohort": together}
    if not on_cuda:
        ways["the least"] = least
    print(table_head("model", "clients", "ms a client-step, loop", *(f"loop / {way}" for way in ways), left=2))
    with limited_threads(1):
        for model, clients, kind in product(options.models, options.clients, ("", " uneven")):
            batches = [1 + 7 * client % most if kind else options.batches for client in range(clients)]
            jobs = [job_of(options, model, client, number) for client, number in enumerate(batches)]
            print(table_row([model, f"{clients}{kind}", *row(jobs, ways, options.repeats, device)]), flush=True)


if __name__ == "__main__":
    main()
