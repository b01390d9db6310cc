"""An existing Ray cluster: whether it answers, and the resources of its nodes. We join it but never stop it."""

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
from pathlib import Path
from typing import Any, NamedTuple

from protosphere.core.errors import SettingError
from protosphere.launch.processes import import_path

PATIENCE = 60.0  # seconds for Ray to join, or to find out that it cannot


class Node(NamedTuple):
    """The CPUs and GPUs with which a node of a Ray cluster was started."""

    cpus: float
    gpus: float


def count_tasks(nodes: Sequence[Node], cpus: float, gpus: float) -> int:
    """How many tasks with these needs can run at a time; a task runs on one node.

    Raises:
        SettingError: no node can run a task.
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


def cluster_address(address: str) -> str:
    """The given address; for "" that of RAY_ADDRESS, or of the cluster to which this machine belongs.

    Raises:
        SettingError: it belongs to none.
    """
    # written by `ray start`. Ray's own `auto` takes any Ray of this machine, even that of another run
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not address and file.is_file():
        address = file.read_text("utf-8").strip()
    if not address:
        raise SettingError(
            "--on is ray, but this machine is no node of a Ray cluster: start one with `ray start --head`, or give the "
            "address of one, as in --on ray:10.0.0.1:6379; without a cluster use --on flower."
        )
    return address


def nodes_at(address: str) -> list[Node]:
    """The live nodes of a cluster, found by joining it briefly in a separate process that may be abandoned.

    Args:
        address: the address of its head; "" for the cluster to which this machine belongs.

    Raises:
        SettingError: the address is invalid, there is no answer, or this machine belongs to no cluster.
    """
    address = cluster_address(address)
    if not re.fullmatch(r"[^/]+:\d+", address):
        raise SettingError(
            f"--on is 'ray:{address}', but ray: must be followed by the HOST:PORT of `ray start --head`."
        )
    try:
        # Ray itself takes a minute to report this
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        command = [sys.executable, "-m", "protosphere.launch.ray_cluster", address]
        environment = os.environ | {"PYTHONPATH": import_path()}
        joined = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, OverflowError, UnicodeError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise SettingError(
            f"--on is ray:{address}, but this machine cannot join a Ray cluster ({lines[-1]}); start "
            "one with `ray start --head`, make this machine a node of it with `ray start --address HOST:PORT`, or use "
            "--on flower, which needs none."
        ) from None
    return [Node(*amounts) for amounts in json.loads(joined.stdout.strip().rpartition("\n")[2])]


def join(address: str, **options: Any) -> Any:
    """The module `ray`, joined to the cluster; the caller must call its `shutdown`."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # it says that in later versions a task without a GPU may see one
        warnings.simplefilter("ignore", FutureWarning)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    if threading.current_thread() is threading.main_thread():
        # Ray replaces the handler
        signal.signal(signal.SIGTERM, before)
    return ray


if __name__ == "__main__":
    joined_ray = join(sys.argv[1])
    resources = [node["Resources"] for node in joined_ray.nodes() if node["Alive"]]
    joined_ray.shutdown()
    print(json.dumps([(amounts.get("CPU", 0.0), amounts.get("GPU", 0.0)) for amounts in resources]))
