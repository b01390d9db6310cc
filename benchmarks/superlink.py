"""What the calls of an idle node cost the SuperLink's database, in milliseconds of the processor, without the network.

    python -m benchmarks.superlink

A SuperNode that has nothing to do asks for work every 3 s and sends a heartbeat about every 30 s. The measured calls
are Flower's own, below its public API: what is measured is Flower.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager

from benchmarks.common import described_parser, table_head, table_row, where

INTERVAL = 30.0  # seconds between heartbeats
CALLS = 500  # of which each figure is the mean


def main() -> None:
    """Print the medians by the number of registered nodes."""
    parser = described_parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{where()} | {options.repeats} repeats\n")
    print(table_head("nodes", "CPU ms of a heartbeat", "CPU ms of a pull that finds nothing"))
    for nodes in options.nodes:
        rows = [cost_of_calls(nodes) for _ in range(options.repeats)]
        print(table_row([f"{nodes:,}", *(f"{median(column):.2f}" for column in zip(*rows, strict=True))]), flush=True)


def cost_of_calls(nodes: int) -> list[float]:
    """Milliseconds of a heartbeat, and of a pull, with so many nodes in the database."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/state.db"
        state = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()
        ids = [state.create_node("owner", "owner", os.urandom(32), INTERVAL) for _ in range(nodes)]
        heartbeat = partial(state.acknowledge_node_heartbeat, heartbeat_interval=INTERVAL)
        return [mean_ms(call, ids[:CALLS]) for call in (heartbeat, partial(state.get_message_ins, limit=1))]


def mean_ms(call: Callable[[int], object], nodes: Sequence[int]) -> float:
    """Milliseconds of the processor a call."""
    began = time.process_time()
    for node in nodes:
        call(node)
    return 1e3 * (time.process_time() - began) / len(nodes)


if __name__ == "__main__":
    main()
