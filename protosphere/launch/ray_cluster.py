"""A Ray cluster that somebody runs: whether it answers, and what its nodes have. We join it, and never stop it."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.launch.processes import import_path

PATIENCE = 60.0  # seconds for Ray to join, which may take as long to see that it cannot


@dataclass(frozen=True)
class Node:
    """How much of CPUs and GPUs a node of a Ray cluster was started with."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Cluster:
    """The cluster at an address, with the nodes that were alive when it was asked."""

    address: str
    nodes: Sequence[Node]

    def __str__(self) -> str:
        amounts = {"node": len(self.nodes), "CPU": sum(node.cpus for node in self.nodes)}
        if gpus := sum(node.gpus for node in self.nodes):
            amounts["GPU"] = gpus
        text = ", ".join(f"{number:g} {what}{'s' * (number != 1)}" for what, number in amounts.items())
        return f"Ray at {self.address} ({text})"

    def holds(self, cpus: float, gpus: float) -> int:
        """How many tasks that need so much run at a time; none is spread over nodes.

        Raises:
            SettingError: no node can run one.
        """
        number = 0
        for node in self.nodes if cpus >= 1 and gpus >= 0 else ():
            number += int(min(node.cpus // cpus, node.gpus // gpus if gpus else float("inf")))
        if not number:
            raise SettingError(
                f"no node of {self} has {cpus:g} CPUs and {gpus:g} GPUs for a client; change --cpus-per-client or "
                "--gpus-per-client, or start a larger node."
            )
        return number


def cluster_at(address: str) -> Cluster:
    """Join the cluster for a moment, in a process that can be left behind, and see what there is.

    Args:
        address: of its head; "" for the cluster of which this machine is a node.

    Raises:
        SettingError: the address is none, nobody answers there, or no cluster of which this machine is a node.
    """
    address = cluster_address(address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise SettingError(f"--on is 'ray:{address}', but after ray: stands the HOST:PORT of `ray start --head`.")
    try:
        # Ray itself takes a minute to say so
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"--on is ray:{address}, but nothing answers there ({getattr(error, 'strerror', None) or error}); start a "
            f"cluster with `ray start --head --port {port}`, or give the address of one."
        ) from None
    command = [sys.executable, "-m", "protosphere.launch.ray_cluster", address]
    environment = os.environ | {"PYTHONPATH": import_path()}
    try:
        joined = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        last = joined.stderr.strip().rpartition("\n")[2] or f"exit code {joined.returncode}"
        reason = last if joined.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"no answer within {PATIENCE:g} s"
    if reason:
        raise SettingError(
            f"--on is ray:{address}, but this machine cannot join a Ray cluster there ({reason.rstrip('.')}); give the "
            f"address of one, and make this machine a node of it with `ray start --address {address}`."
        )
    amounts = json.loads(joined.stdout.strip().rpartition("\n")[2])
    return Cluster(address, [Node(*amount) for amount in amounts])


def cluster_address(address: str) -> str:
    """An address as it is; "" is that of the cluster of which this machine is a node, as Ray itself finds it.

    Raises:
        SettingError: it is none.
    """
    if address:
        return address
    # `ray start` leaves it there
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    address = os.environ.get("RAY_ADDRESS", "") or (file.read_text("utf-8").strip() if file.is_file() else "")
    if not address:
        raise SettingError(
            "--on is ray, but this machine is no node of a Ray cluster: start one with `ray start --head`, or give the "
            "address of one, as in --on ray:10.0.0.1:6379; without a cluster use --on flower."
        )
    return address


def join(address: str, **options: Any) -> Any:
    """`ray`, joined to the cluster in this process, which is to call its `shutdown`; workers find our packages."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # that a task which asks for no GPU may see one in versions to come
        warnings.simplefilter("ignore", FutureWarning)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    if threading.current_thread() is threading.main_thread():
        # Ray takes it for itself
        signal.signal(signal.SIGTERM, before)
    return ray


if __name__ == "__main__":
    joined_ray = join(sys.argv[1])
    resources = [node["Resources"] for node in joined_ray.nodes() if node["Alive"]]
    joined_ray.shutdown()
    print(json.dumps([(amounts.get("CPU", 0.0), amounts.get("GPU", 0.0)) for amounts in resources]))
