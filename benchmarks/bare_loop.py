"""A round in process over a bare loop of the same steps: the ratio of both, in seconds of the processor, interleaved.

    python -m benchmarks.bare_loop
    python -m benchmarks.bare_loop --mnist PATH

The bare loop trains the same clients' models in the same memory layout on the same batches: forward pass,
cross-entropy and FedProto's pull, backward pass, SGD. What a round has besides: prototypes over all training rows,
evaluation by all rules, messages and checks, the store, aggregation. The first round is left out.
"""

import argparse
import time
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from flwr.app import Context, RecordDict
from torch.nn.functional import cross_entropy

from benchmarks.common import own_home, where
from protosphere.client_app.client import Client
from protosphere.client_app.state import new_state
from protosphere.client_app.train import batches
from protosphere.core.seeds import generator, limited_threads
from protosphere.launch.grid import run_in_process
from protosphere.launch.run_config import plan
from protosphere.models.optim import EagerSGD
from protosphere.prototypes.losses import prototype_pull

ROUNDS = 4
DIGITS = 'strategy="fedproto"'
MNIST = 'strategy="fedproto" models="cnn2" feature-dim=512 batch-size=10'


def of_rounds(config: Mapping[str, Any], clients: int) -> float:
    """Seconds of a round after the first, the median."""
    marks: list[float] = []
    run_in_process(
        config,
        clients=clients,
        show=lambda line: marks.append(time.process_time()) if line.startswith("round ") else None,
    )
    return median(after - before for before, after in pairwise(marks))


def of_steps(config: Mapping[str, Any], clients: int, first: int | None = None) -> float:
    """Seconds of the bare loop over all clients, or the first ones."""
    made = [
        Client(Context(0, 0, {"partition-id": partition, "num-partitions": clients}, RecordDict(), dict(config)))
        for partition in range(clients if first is None else first)
    ]
    # all of it: threads that a model's first weights have woken would spin into what is timed
    with limited_threads(made[0].settings.threads):
        return sum(map(_of_one, made))


def _of_one(client: Client) -> float:
    settings, data = client.settings, client.data
    state = new_state(client.objective, client.model, data.transform.shape, client.partition, client.device)
    module, optimiser = state.module.train(), EagerSGD(state.module.parameters(), lr=settings.learning_rate)
    table = torch.randn(data.num_classes, settings.feature_dim), torch.ones(data.num_classes, dtype=torch.bool)
    began = time.process_time()
    for epoch in range(settings.local_epochs):
        order = generator(settings.seed, client.partition, epoch)
        for index in batches(len(data.train), settings.batch_size, order, client.device):
            labels = data.train.labels[index]
            z = module.features(data.transform(data.train.inputs[index]))
            loss = cross_entropy(module.classify(z), labels) + prototype_pull(z, labels, *table)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return time.process_time() - began


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", default="", help="a folder of MNIST as parquet files, as `dataset` takes it")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = {"digits, ten tiny clients": (DIGITS, 10)}
    if options.mnist:
        rows["MNIST, ten clients, cnn2, batches of 10"] = (f'{MNIST} dataset="{options.mnist}"', 10)
    print(f"{where()} | median of {options.repeats}, interleaved\n")
    print("| run | a round, CPU s | bare loop, CPU s | ratio |\n|---|---:|---:|---:|")
    for name, (settings, clients) in rows.items():
        with own_home():
            config = plan([f"{settings} rounds={ROUNDS}"], clients=clients).run_config
            pairs = [(of_rounds(config, clients), of_steps(config, clients)) for _ in range(options.repeats)]
        rounds, steps = (median(pair[place] for pair in pairs) for place in (0, 1))
        ratio = median(one / other for one, other in pairs)
        print(f"| {name} | {rounds:.2f} | {steps:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
