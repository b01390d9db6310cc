"""Runs a SuperNode, and waits where the SuperLink does not take its key yet: `patient.py COMMAND ...`.

A SuperNode that was killed counts as online until its heartbeat has run out, about a minute, and until then the
SuperLink refuses its key to the one that is started in its place. Flower says no more than that it could not connect,
and ends; whoever starts it again would do so many times. So it is tried again here, and the log says why.
"""

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from protosphere.core.flower import is_refused_key

PATIENCE = 120.0  # seconds from the first refusal on: twice what a heartbeat is waited for
PAUSE = 10.0  # seconds between two attempts
REST = 2.0  # seconds for the last lines of a SuperNode that has ended; a process that it left may hold them open


class SuperNode:
    """One attempt.

    Attributes:
        refused: whether the SuperLink did not take its key.
    """

    def __init__(self, command: list[str]):
        self.refused = False
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.refused = self.refused or is_refused_key(line.decode(errors="replace"))
            # whoever reads may have gone; a SuperNode that nobody listens to would stop at a full pipe
            with suppress(OSError):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

    def wait(self) -> int:
        """Its exit code, when all that it said has been passed on."""
        code = self.process.wait()
        self._reader.join(REST)
        return code


def main(command: list[str]) -> int:
    """Run, and run again while the key is refused; the exit code."""
    stopped = threading.Event()
    node: SuperNode | None = None

    def stop(number: int, _: object) -> None:
        stopped.set()
        if node is not None:
            node.process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup's stays as it is
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    deadline = None
    while True:
        began = time.monotonic()
        node = SuperNode(command)
        if stopped.is_set():
            node.process.terminate()
        code = node.wait()
        code = 128 - code if code < 0 else code
        if not node.refused or code == 0 or stopped.is_set():
            return code
        now = time.monotonic()
        if deadline is None or now - began > PATIENCE:
            # the first refusal, or that of another time
            deadline = now + PATIENCE
        if now > deadline:
            print(
                f"deploy/supernode.sh: the SuperLink has refused this site's key for {PATIENCE:.0f} s: it is not "
                "registered, or another SuperNode has it.",
                file=sys.stderr,
                flush=True,
            )
            return code
        print(
            "deploy/supernode.sh: the SuperLink does not take this site's key: it is not registered, or still counts "
            f"as online, as for about a minute after a SuperNode was killed. It is tried again every {PAUSE:.0f} s.",
            file=sys.stderr,
            flush=True,
        )
        if stopped.wait(PAUSE):
            return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
