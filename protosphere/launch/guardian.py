"""A process that outlives us when we are killed, and then ends all that we started.

No handler runs on SIGKILL. So a small Python of its own waits at the end of a pipe, which closes with our death.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protosphere.launch.processes import Family

# without `site`, and by its path: it is to cost nothing
START = "import sys; sys.path.insert(0, sys.argv[1]); from protosphere.launch.guardian import watch; watch(sys.argv[2])"
ROOT = Path(__file__).resolve().parents[2]
LOOK = 2.0  # seconds, here and below
PATIENCE = 10.0


@contextmanager
def guarded(scratch: Path) -> Iterator[int]:
    """Have all that is started inside ended, and the folder `scratch` removed, even if this process is killed.

    Yields the file descriptor for `Family(tell=...)`. At an orderly end nothing is left to do for the guardian.
    """
    listen, tell = os.pipe()
    try:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START, str(ROOT), str(scratch)],
            stdin=listen,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # what a terminal sends goes to its own session only
            start_new_session=True,
        )
        try:
            yield tell
        finally:
            os.close(tell)
            tell = -1
            with suppress(subprocess.TimeoutExpired):
                guardian.wait(3 * PATIENCE)
    finally:
        # open until now, so that nobody who tells of himself dies of a pipe without a reader
        os.close(listen)
        if tell >= 0:
            os.close(tell)


def watch(scratch: str) -> None:
    """The guardian's own life: hear of sessions on stdin until its end, then stop what is left of them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    family = Family()
    heard = b""
    while True:
        if select.select([0], [], [], LOOK)[0]:
            chunk = os.read(0, 4096)
            if not chunk:
                break
            *lines, heard = (heard + chunk).split(b"\n")
            for line in lines:
                family.adopt(int(line))
        # sessions that descendants found are to be known before their parents vanish
        family.members()
    family.stop(PATIENCE)
    shutil.rmtree(scratch, ignore_errors=True)
