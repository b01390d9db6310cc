"""Runs a SuperNode or a SuperLink, in the foreground, and beside it the SuperExec that starts its tasks.

    with_superexec.py STATE COMMAND ... :: SUPEREXEC ...

They share a secret that nobody else on the machine knows: without it, any local account may take the tasks at the
port of the first, and with them a run's messages. When one of the two ends, the other is ended.
"""

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time

GRACE = 3.0  # seconds that both have to end: less than service managers give
SIGNAL_WITH_PARENT = 1  # of prctl


def end_with_parent() -> None:
    """In a child of this process: end when it is gone, be it killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SIGNAL_WITH_PARENT, signal.SIGTERM)


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
        children: list[subprocess.Popen[bytes]] = []
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
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent, close_fds=False)
            children.append(process)
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
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
