"""A Ray cluster that somebody runs: whether it answers, and what its nodes have. We join it, and never stop it."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from protosphere.core.errors import SettingError
from protosphere.launch.processes import import_path

PATIENCE = 60.0  # seconds for Ray to join, which may take as long to see that it cannot
NEARBY = "auto"  # Ray's word for the cluster of which this machine is a node


class Node(NamedTuple):
    """How much of CPUs and GPUs a node of a Ray cluster was started with."""

    cpus: float
    gpus: float


def count_tasks(nodes: Sequence[Node], cpus: float, gpus: float) -> int:
    """How many tasks that need so much run at a time; none is spread over nodes.

    Raises:
        SettingError: no node can run one.
    """
    number = 0
    for node in nodes if cpus >= 1 and gpus >= 0 else ():
        number += int(min(node.cpus // cpus, node.gpus // gpus if gpus else float("inf")))
    if not number:
        raise SettingError(
            f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs for a client; change --cpus-per-client or "
            "--gpus-per-client, or start a larger node."
        )
    return number


def nodes_at(address: str) -> list[Node]:
    """Join the cluster for a moment, in a process that can be left behind: its nodes that are alive.

    Args:
        address: of its head; "" for the cluster of which this machine is a node.

    Raises:
        SettingError: the address is none, nobody answers there, or this machine is no node of a cluster.
    """
    if address and not re.fullmatch(r"[^/]+:\d+", address):
        raise SettingError(f"--on is 'ray:{address}', but after ray: stands the HOST:PORT of `ray start --head`.")
    try:
        if address:
            # Ray itself takes a minute to say so
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        command = [sys.executable, "-m", "protosphere.launch.ray_cluster", address]
        environment = os.environ | {"PYTHONPATH": import_path()}
        joined = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, OverflowError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise SettingError(
            f"--on is ray{address and ':'}{address}, but this machine cannot join a Ray cluster ({lines[-1]}); start "
            "one with `ray start --head`, make this machine a node of it with `ray start --address HOST:PORT`, or use "
            "--on flower, which needs none."
        ) from None
    return [Node(*amounts) for amounts in json.loads(joined.stdout.strip().rpartition("\n")[2])]


def join(address: str, **options: Any) -> Any:
    """`ray`, joined to the cluster in this process, which is to call its `shutdown`."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # that a task which asks for no GPU may see one in versions to come
        warnings.simplefilter("ignore", FutureWarning)
        ray.init(address=address or NEARBY, logging_level=logging.ERROR, log_to_driver=False, **options)
    if threading.current_thread() is threading.main_thread():
        # Ray takes it for itself
        signal.signal(signal.SIGTERM, before)
    return ray


if __name__ == "__main__":
    joined_ray = join(sys.argv[1])
    resources = [node["Resources"] for node in joined_ray.nodes() if node["Alive"]]
    joined_ray.shutdown()
    print(json.dumps([(amounts.get("CPU", 0.0), amounts.get("GPU", 0.0)) for amounts in resources]))
