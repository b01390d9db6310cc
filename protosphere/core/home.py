"""PROTOSPHERE_HOME on a Ray cluster, where a client may run on another machine in each round.

All nodes must have the same home on a shared file system. The server creates the folder of the run's stores there, and
a worker that does not find it refuses to take part, because it would silently start anew.
"""

import os
import shutil
import socket
from pathlib import Path

OTHER_HOME = 100  # a client's error code if its home differs; beyond Flower's own codes


class OtherHomeError(Exception):
    """This process's home is not the run's; one sentence for the user, without the remedy."""


def home() -> Path:
    """The folder for results, client stores and the data cache: PROTOSPHERE_HOME or ~/.protosphere."""
    return Path(os.environ.get("PROTOSPHERE_HOME") or Path.home() / ".protosphere").expanduser()


def results_root(results_dir: str) -> Path:
    """The folder that holds the runs' folders."""
    return Path(os.path.expanduser(results_dir)) if results_dir else home() / "results"


def stores(run: str) -> Path:
    """The folder of the stores of a run's clients. A run's name ends in random digits, so it is unique."""
    return home() / "clients" / run


def discard_stores(run: str) -> None:
    """Delete a run's client stores in this home."""
    shutil.rmtree(stores(run), ignore_errors=True)


def refuse_other(run: str) -> None:
    """Raise OtherHomeError if the run was started in another home."""
    if not stores(run).is_dir():
        raise OtherHomeError(
            f"it runs on {socket.gethostname()} with the PROTOSPHERE_HOME {home().absolute()}, which has no folder of "
            "this run's clients"
        )


def remedy(problem: str) -> str:
    """The server's message about such an error, with the remedy."""
    return (
        f"{problem.rstrip('.')}: the run's home is {home().absolute()}, and a client's models must be where it runs "
        "next; put PROTOSPHERE_HOME on a file system that all nodes share, and run `ray start` with it on each."
    )
