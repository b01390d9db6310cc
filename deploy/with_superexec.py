"""Runs a SuperNode or a SuperLink, in the foreground, and beside it the SuperExec that starts its tasks.

    with_superexec.py STATE COMMAND ... :: SUPEREXEC ...

They share a secret that nobody else on the machine knows: without it, any local account may take the tasks at the
port of the first, and with them a run's messages. When one of the two ends, the other is ended.

Each line that they say gets the time at which it came, and loses its colours, which a log would keep as signs.
"""

import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

GRACE = 3.0  # seconds that both have to end: less than service managers give
SIGNAL_WITH_PARENT = 1  # of prctl
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DATED = re.compile(r"\d{4}-\d\d-\d\dT")  # how a line begins that has its time already


def end_with_parent() -> None:
    """In a child of this process: end when it is gone, be it killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SIGNAL_WITH_PARENT, signal.SIGTERM)


def pass_on(lines: Iterable[str]) -> None:
    """Write lines as they come, with the time."""
    for line in lines:
        text = COLOUR.sub("", line)
        if not DATED.match(text):
            text = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}"
        # whoever reads may have gone, and a pipe that nobody empties would stop them
        with suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()


def main(state: str, words: list[str]) -> int:
    """Run both until one ends: the exit code of that one."""
    border = words.index("::")
    with tempfile.NamedTemporaryFile(prefix="secret-", dir=state) as secret:
        secret.write(secrets.token_bytes(32))
        secret.flush()
        shared = ["--superexec-auth-secret-file", secret.name]
        commands = [
            [*words[:border], "--isolation", "process", *shared],
            [*words[border + 1 :], "--parent-pid", str(os.getpid()), *shared],
        ]
        children: list[subprocess.Popen[str]] = []
        readers: list[threading.Thread] = []
        stop_times: list[float] = []

        def stop(*_: object) -> None:
            stop_times.append(time.monotonic())
            for child in children:
                child.terminate()
            # the first signal sets the time by which both are gone
            if len(stop_times) == 1:
                signal.signal(signal.SIGALRM, kill)
                signal.setitimer(signal.ITIMER_REAL, GRACE)

        def kill(*_: object) -> None:
            for child in children:
                child.kill()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # what nohup ignores stays ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, stop)
        for command in commands:
            # what was meant to be inherited, such as the lock of a database, is
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=end_with_parent,
                close_fds=False,
            )
            assert process.stdout is not None
            children.append(process)
            readers.append(threading.Thread(target=pass_on, args=(process.stdout,), daemon=True))
            readers[-1].start()
        if stop_times:
            # it came while they were started
            stop()

        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        for child in children:
            if child.pid == pid:
                child.returncode = code
        stop()
        for child in children:
            child.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        # what they started may have their pipes for longer
        for reader in readers:
            reader.join(1.0)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
