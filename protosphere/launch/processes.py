"""Processes that never outlive the one that started them.

Each command runs under a watcher, a small Python process (`python -I processes.py ...`). When the watcher gets SIGTERM,
when the command has ended, or when the starting process is gone (even by SIGKILL), it ends all descendants of the
command. Flower needs this, because it leaves SuperLinks and Ray's daemons behind.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK = 0.05  # seconds between two checks of a watcher
PATIENCE = 10.0  # seconds that processes get to end after SIGTERM
SIMULATION = "flwr-simulation"  # the name of Flower's process of a simulation
SUBREAPER = 36  # option of Linux' prctl: orphaned descendants become our children


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number

    @property
    def name(self) -> str:
        """`SIGINT`, `SIGTERM` or `SIGHUP`."""
        return signal.Signals(self.number).name


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted`, once.

    Yields a function that makes the process ignore them, for a clean-up that must finish. Outside the main thread,
    where Python allows no handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def deafen() -> None:
        # a function instead of SIG_IGN, which child processes of the clean-up would inherit
        for number in before:
            signal.signal(number, lambda *_: None)

    def interrupt(number: int, frame: FrameType | None) -> None:
        deafen()
        raise Interrupted(number)

    # signals that the caller ignores (nohup, background jobs) stay ignored
    before = {n: was for n in SIGNALS if (was := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield deafen
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def import_path() -> str:
    """PYTHONPATH for our processes, so that they import the same Protosphere as this one."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))


def start(
    command: Sequence[str], patience: float = PATIENCE, scratch: str | os.PathLike[str] = "", **options: Any
) -> "subprocess.Popen[str]":
    """Start a command under a watcher, in its own session, with empty stdin.

    Args:
        patience: seconds that the command gets to end after SIGTERM, before it is killed and its descendants are ended.
        scratch: a folder that the watcher removes if this process is gone and cannot do so.
        options: of `subprocess.Popen`.

    Returns:
        The watcher. It exits with the command's exit code (128 + n on signal n) after all descendants of the command
        have ended. End it with `terminate`; `kill` would leave its processes running.
    """
    watcher = [sys.executable, "-I", __file__, str(os.getpid()), str(patience), os.fspath(scratch)]
    options |= {"text": True, "encoding": "utf-8", "errors": "replace", "stdin": subprocess.DEVNULL}
    # signals of the terminal go to us, and we decide what to end
    return subprocess.Popen([*watcher, *command], start_new_session=True, **options)


def stop(*processes: "subprocess.Popen[str]") -> None:
    """End processes from `start`, and wait until nothing is left of them."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def shell_code(code: int) -> int:
    """An exit code as in a shell: 128 + n for a process that was ended by signal n."""
    return 128 - code if code < 0 else code


def _watch(parent: int, patience: float, scratch: str, command: list[str]) -> int:
    """Run the command until it ends or must end, then end all its descendants. Returns the command's exit code."""
    # not an event: a signal may interrupt a wait that holds the event's lock
    signals: list[int] = []
    for number in SIGNALS:
        # not SIG_IGN, since the command would inherit it
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1)
    process = subprocess.Popen(command)
    import psutil

    while process.poll() is None and os.getppid() == parent and not signals:
        time.sleep(LOOK)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    process.kill()
    code = process.wait()
    # from the top, since orphans become our children: a process whose workers die first reports a failure. Repeatedly,
    # since an ending process may just have started another
    deadline = time.monotonic() + min(patience, PATIENCE)
    terminated: set[psutil.Process] = set()
    while children := psutil.Process().children():
        for child in children:
            with suppress(psutil.NoSuchProcess):
                if time.monotonic() > deadline:
                    child.kill()
                elif child not in terminated:
                    # Ray handles SIGTERM in this process itself, and would end its workers before Flower's server
                    is_simulation = child.name() == SIMULATION
                    child.send_signal(signal.SIGINT if is_simulation else signal.SIGTERM)
        terminated.update(children)
        psutil.wait_procs(children, LOOK)
    if scratch and os.getppid() != parent:
        shutil.rmtree(scratch, ignore_errors=True)
    return shell_code(code)


if __name__ == "__main__":
    sys.exit(_watch(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
