"""PROTOSPHERE_HOME where a client may run on another machine in every round: a Ray cluster's.

A client's store must be where the client runs next, so all nodes need one home, on a file system that they share. The
server makes the folder of the run's stores there, and a worker that does not find it takes no part: it would begin
anew, unnoticed.
"""

import os
import shutil
import socket
from pathlib import Path

OTHER_HOME = 100  # beyond Flower's own error codes: what a client answers whose home is another


class OtherHomeError(Exception):
    """This process's home is not the run's; one sentence for a person, without the remedy."""


def home() -> Path:
    """The folder for results, client stores and the data cache: PROTOSPHERE_HOME or ~/.protosphere."""
    return Path(os.environ.get("PROTOSPHERE_HOME") or Path.home() / ".protosphere").expanduser()


def results_root(results_dir: str) -> Path:
    """The folder that holds the runs' folders."""
    return Path(os.path.expanduser(results_dir)) if results_dir else home() / "results"


def stores(run: str) -> Path:
    """The folder of the stores of a run's clients. A run's name ends in random digits, so no other run has it."""
    return home() / "clients" / run


def discard_stores(run: str) -> None:
    """Delete what the clients of a run keep in this home."""
    shutil.rmtree(stores(run), ignore_errors=True)


def refuse_other(run: str) -> None:
    """Go no further in a home in which the run was not started.

    Raises:
        OtherHomeError: names this machine and its home.
    """
    if not stores(run).is_dir():
        raise OtherHomeError(
            f"it runs on {socket.gethostname()} with the PROTOSPHERE_HOME {home().absolute()}, which has no folder of "
            "this run's clients"
        )


def remedy(problem: str) -> str:
    """What the server says of it."""
    return (
        f"{problem.rstrip('.')}: the run's home is {home().absolute()}, and a client's models must be where it runs "
        "next; put PROTOSPHERE_HOME on a file system that all nodes share, and run `ray start` with it on each."
    )
