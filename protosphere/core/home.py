"""PROTOSPHERE_HOME where a client may run on another machine in every round: a Ray cluster's.

A client's store must be where the client runs next, so all nodes need one home, on a file system that they share. The
server leaves a digest of the run's token there, and a worker that does not find it takes no part: it would begin anew,
unnoticed, or go on from an older state.
"""

import hashlib
import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from protosphere.core.files import replacing

OTHER_HOME = 100  # beyond Flower's own error codes: what a client answers whose home is another
MARK = "token"


class OtherHomeError(Exception):
    """This process's home is not the run's; one sentence for a person, without the remedy."""


def home() -> Path:
    """The folder for results, client stores and the data cache: PROTOSPHERE_HOME or ~/.protosphere."""
    return Path(os.environ.get("PROTOSPHERE_HOME") or Path.home() / ".protosphere").expanduser()


def results_root(results_dir: str) -> Path:
    """The folder that holds the runs' folders."""
    return Path(os.path.expanduser(results_dir)) if results_dir else home() / "results"


def token_digest(token: str) -> str:
    """What is kept of a run's token beside clients' models: who reads that does not learn it."""
    return hashlib.sha256(token.encode()).hexdigest()


def stores(run: str) -> Path:
    """The folder of the stores of a run's clients."""
    return home() / "clients" / run


def mark(run: str, token: str) -> None:
    """Leave in the run's home that it is.

    Raises:
        OSError: it cannot be written.
    """
    folder = stores(run)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / MARK) as temporary:
        temporary.write_text(token_digest(token) + "\n", "ascii")


def discard_stores(run: str, token: str) -> None:
    """Take away what clients of a run keep in this home. A run of another home may have its name: two that begin in
    one second on two machines do."""
    digest, folder = token_digest(token), stores(run)
    for description in folder.glob("*/client.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(description.read_text("utf-8"))["token"] == digest:
                shutil.rmtree(description.parent, ignore_errors=True)
    with suppress(OSError, ValueError):
        if (folder / MARK).read_text("ascii").strip() == digest:
            (folder / MARK).unlink()
    # another's stores stay, and so does the folder
    with suppress(OSError):
        folder.rmdir()


def refuse_other(run: str, token: str) -> None:
    """Go no further in a home in which the run was not started.

    Raises:
        OtherHomeError: names this machine and its home.
    """
    try:
        digest = (stores(run) / MARK).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        digest = ""
    if digest != token_digest(token):
        raise OtherHomeError(
            f"it runs on {socket.gethostname()} with the PROTOSPHERE_HOME {home().absolute()}, which has no token of "
            "this run"
        )


def remedy(problem: str) -> str:
    """What the server says of it."""
    return (
        f"{problem.rstrip('.')}: the run's home is {home().absolute()}, and a client's models must be where it runs "
        "next; put PROTOSPHERE_HOME on a file system that all nodes share, and run `ray start` with it on each."
    )
