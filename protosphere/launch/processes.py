"""Processes that we start, of which nothing outlives us.

Each command runs under a watcher, a small Python of its own (`python -I processes.py ...`). When the watcher is told to
end (SIGTERM), when the command has ended, or when the process that started it is gone, be it by SIGKILL, it ends all
that came of the command. Flower needs that: it leaves SuperLinks and Ray's daemons behind.
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
LOOK = 0.05  # seconds after which a watcher looks again
PATIENCE = 10.0  # seconds that processes have to end after SIGTERM
SIMULATION = "flwr-simulation"  # the name of Flower's process of a simulation
SUBREAPER = 36  # of Linux' prctl: orphans among our descendants become our children


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
    """Let SIGINT, SIGTERM and SIGHUP raise `Interrupted` inside, once.

    Yields a function that deafens the process to them, for a clean-up that must come to its end. Outside the main
    thread, where Python takes no handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def deafen() -> None:
        # a function and not SIG_IGN, which the processes of the clean-up would inherit
        for number in before:
            signal.signal(number, lambda *_: None)

    def interrupt(number: int, frame: FrameType | None) -> None:
        deafen()
        raise Interrupted(number)

    # what a caller ignores (nohup, a shell's background jobs) stays ignored
    before = {n: was for n in SIGNALS if (was := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield deafen
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def import_path() -> str:
    """PYTHONPATH of processes of ours: they import the Protosphere that started them, wherever it was found."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))


def start(
    command: Sequence[str], patience: float = PATIENCE, scratch: str | os.PathLike[str] = "", **options: Any
) -> "subprocess.Popen[str]":
    """Start a command under a watcher, in a session of its own, its stdin empty.

    Args:
        patience: seconds that the command has for its own clean end, before the rest of what it started is ended.
        scratch: a folder that is removed when this process is gone, which would have done so.
        options: of `subprocess.Popen`.

    Returns:
        The watcher. It ends with the command's exit code, 128 + n on signal n, when all that came of the command has
        ended. End it by `terminate`; `kill` would leave its processes alone.
    """
    watcher = [sys.executable, "-I", __file__, str(os.getpid()), str(patience), os.fspath(scratch)]
    options |= {"text": True, "encoding": "utf-8", "errors": "replace", "stdin": subprocess.DEVNULL}
    # what a terminal sends goes to us, and we say what is to end
    return subprocess.Popen([*watcher, *command], start_new_session=True, **options)


def stop(*processes: "subprocess.Popen[str]") -> None:
    """End what `start` has started, and wait until nothing of it is left."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def shell_code(code: int) -> int:
    """An exit code as a shell has it: 128 + n of a process that signal n ended."""
    return 128 - code if code < 0 else code


def _watch(parent: int, patience: float, scratch: str, command: list[str]) -> int:
    """Run the command until an end of it is due, then end all that came of it: the command's exit code."""
    # not an event, whose lock a signal may find taken by the wait that it interrupts
    signals: list[int] = []
    for number in SIGNALS:
        # not SIG_IGN, which the command would inherit
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
    # from the top, for orphans become our children: who sees its own workers die first takes that for a failure. Again
    # and again: what is being ended may just have started something
    deadline = time.monotonic() + min(patience, PATIENCE)
    terminated: set[psutil.Process] = set()
    while children := psutil.Process().children():
        for child in children:
            with suppress(psutil.NoSuchProcess):
                if time.monotonic() > deadline:
                    child.kill()
                elif child not in terminated:
                    # Ray takes this one's SIGTERM for itself, and would end its workers under Flower's server
                    is_simulation = child.name() == SIMULATION
                    child.send_signal(signal.SIGINT if is_simulation else signal.SIGTERM)
        terminated.update(children)
        psutil.wait_procs(children, LOOK)
    if scratch and os.getppid() != parent:
        shutil.rmtree(scratch, ignore_errors=True)
    return shell_code(code)


if __name__ == "__main__":
    sys.exit(_watch(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
