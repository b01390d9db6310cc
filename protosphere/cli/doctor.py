"""`protosphere doctor`: what this machine has, for a report of a bug or before a deployment."""

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from protosphere.core.flower import CONTROL_PORT, FLEET_PORT, LOCAL_PORT, NODE_PORT, UntriedFlowerError, fleet_transport

PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "datasets", "transformers", "safetensors", "pydantic")
PORTS = {
    FLEET_PORT: "SuperLink, for SuperNodes",
    CONTROL_PORT: "SuperLink, for `flwr run`",
    NODE_PORT: "SuperNode, for its own processes",
    LOCAL_PORT: "for the SuperLink that `flwr run` starts itself",
}
LEAST_DISK, LEAST_MEMORY = 10, 2  # GB
PROBLEM = 1


def doctor() -> None:
    """Check this machine before a deployment or a bug report.

    It prints versions, devices, Flower's commands and ports, disk space and shared memory. It sends nothing.

    Exits 0, or 1 if something would keep a run from working.
    """
    problems = 0
    for good, what, detail in _check_machine():
        problems += not good
        typer.echo(f"{'ok ' if good else '!! '} {what:<16} {detail}")
    if problems:
        raise typer.Exit(PROBLEM)


def _check_machine() -> Iterator[tuple[bool, str, str]]:
    from protosphere.core.home import home
    from protosphere.core.text import own_version
    from protosphere.launch.flower import FlowerError, find_executable

    yield True, "protosphere", own_version()
    yield True, "system", f"{platform.platform()}, {os.cpu_count()} cores"
    yield sys.version_info >= (3, 11), "Python", f"{platform.python_version()}, {sys.executable}"
    for name in PACKAGES:
        try:
            yield True, name, version(name)
        except PackageNotFoundError:
            # what a client without texts, or a machine without simulation, can do without
            yield name in ("ray", "transformers"), name, "not installed"
    try:
        over = {"grpc": "gRPC", "http": "HTTPS"}[fleet_transport()]
        yield True, "Flower", f"SuperNodes and SuperLink speak {over}; all machines of a federation need the same"
    except UntriedFlowerError as error:
        yield False, "Flower", str(error)
    except PackageNotFoundError:
        pass
    yield from _devices()
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        try:
            yield True, name, find_executable(name)
        except FlowerError as error:
            yield False, name, str(error)
    for port, whose in PORTS.items():
        taken = _is_taken(port)
        yield True, f"port {port}", f"{whose}: " + ("in use" if taken else "free")
    yield _room("home", home(), LEAST_DISK)
    if Path("/dev/shm").is_dir():
        # Ray keeps its objects there, and falls back to a disk where it is small
        yield _room("shared memory", Path("/dev/shm"), LEAST_MEMORY)


def _devices() -> Iterator[tuple[bool, str, str]]:
    import torch

    for kind in ("cuda", "mps", "xpu"):
        backend = getattr(torch, kind, None)
        available = backend is not None and backend.is_available()
        names = ""
        if available and kind == "cuda":
            names = ": " + ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield True, kind, f"there{names}" if available else "none"


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _room(what: str, folder: Path, least: int) -> tuple[bool, str, str]:
    ancestor = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = shutil.disk_usage(ancestor).free / 1e9
    writable = os.access(ancestor, os.W_OK)
    detail = f"{folder}: {free:.0f} GB free" + ("" if writable else ", but you cannot write to it")
    return writable and free >= least, what, detail + (f"; at least {least} GB are recommended" if free < least else "")
