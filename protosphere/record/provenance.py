"""The origin of a run: the command that started it, versions, and the machine.

`origin.json` of the run's folder has an entry for every start: the first, and each resume.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from protosphere.core.files import replacing
from protosphere.core.text import own_version

FILE = "origin.json"
PACKAGES = ("flwr", "torch", "numpy", "safetensors")
PATIENCE = 5.0  # seconds that git may take
# started by Flower or a notebook, whose command lines say nothing about the run
NOT_A_COMMAND = ("flwr", "flower", "ray", "ipykernel", "default_worker")


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """The versions of this program, of Python, and of the packages that affect metrics."""
    return {
        "protosphere": own_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def note(folder: Path) -> None:
    """Add this start to `origin.json` in a run's folder. Unknown facts are left out, and a failure to write is ignored
    here, since it changes no metrics."""
    # even the working directory may be gone
    with suppress(OSError):
        starts = [*origins(folder), _now()]
        with replacing(folder / FILE) as temporary:
            temporary.write_text(json.dumps(starts, indent=2) + "\n", "utf-8")


def origins(folder: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; empty without a record of them."""
    try:
        # a damaged record is ignored
        starts = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return []
    if not isinstance(starts, list):
        return []
    return [start for start in starts if isinstance(start, dict)]


def _now() -> dict[str, Any]:
    start: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": command_of(sys.argv)}
    if commit := commit_of(str(Path(__file__).parent)):
        start["commit"] = commit
    return {**start, "versions": versions(), "machine": machine()}


def command_of(arguments: Sequence[str]) -> str:
    """The command line in shell syntax; "" if it belongs to Flower or a notebook."""
    place = arguments[0] if arguments else ""
    program = Path(place).name
    if not program or program.startswith(NOT_A_COMMAND) or "ipykernel" in place or "/ray/" in place:
        return ""
    # without the program's folder, which is specific to this machine
    return shlex.join([program, *arguments[1:]])


@lru_cache(maxsize=1)
def commit_of(folder: str) -> str:
    """The commit of the git repository that contains a folder, with "-dirty" if tracked files differ from it; ""
    without a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit and _git(folder, "status", "--porcelain", "-uno"):
        commit += "-dirty"
    return commit


def _git(folder: str, *arguments: str) -> str:
    try:
        # without locks, since it only reads
        command = ["git", "--no-optional-locks", "-C", folder, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if done.returncode else done.stdout.strip()


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """The server's machine: system, cores, and names of accelerators."""
    details: dict[str, Any] = {"system": platform.platform(), "cores": os.cpu_count()}
    if torch.cuda.is_available():
        details["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return details
