"""Processes that we start, and all that comes of them: found again, stopped, and never anybody else's."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


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

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # what a caller ignores (nohup, a shell's background jobs) stays ignored
    before = {n: was for n in wanted if (was := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield deafen
    finally:
        for number, was in before.items():
            signal.signal(number, was)


class Entry(NamedTuple):
    """A living process: its parent, and the session that it belongs to."""

    parent: int
    session: int


class Family:
    """Processes that we start, each as the leader of a session, with all that they start in turn.

    Kinship is kept as sessions. Flower's SuperExec leads one of its own, and Ray's daemons lose their parent when
    theirs dies and overwrite their environment and command line; but a process cannot leave its session unless it
    founds another, and no other process can get into it.
    """

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []
        self._sessions: set[int] = set()

    def start(self, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        """`subprocess.Popen(command, text=True, **options)` in a session of its own."""
        child: subprocess.Popen[str] = subprocess.Popen(
            command,
            text=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        self._children.append(child)
        self._sessions.add(child.pid)
        return child

    def members(self) -> set[int]:
        """Ids of all its living processes; sessions founded by descendants are found and remembered."""
        table = processes()
        own = {pid for pid, entry in table.items() if entry.session in self._sessions}
        while children := {pid for pid, entry in table.items() if entry.parent in own and pid not in own}:
            self._sessions |= {table[pid].session for pid in children}
            own |= {pid for pid, entry in table.items() if entry.session in self._sessions}
        return own

    def stop(self, patience: float) -> None:
        """End all of it: SIGTERM, then SIGKILL to what is left after `patience` seconds."""
        self._signal(signal.SIGTERM)
        if self.wait(patience):
            return
        deadline = time.monotonic() + patience
        # again and again: what is being killed may just have started something
        while time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            if self.wait(0.2):
                return

    def wait(self, patience: float) -> bool:
        """Whether all of it has ended within `patience` seconds."""
        deadline = time.monotonic() + patience
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        for child in self._children:
            child.poll()
        return True

    def _signal(self, number: int) -> None:
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def processes() -> dict[int, Entry]:
    """Every living process (the dead that nobody has waited for are left out), by its id."""
    return _from_proc() if Path("/proc/self/stat").exists() else _from_ps()


def _from_proc() -> dict[int, Entry]:
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # the process may be gone by now
        with suppress(OSError):
            # the name before the last bracket may itself hold spaces and brackets
            state, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "ZX":
                table[int(path.parent.name)] = Entry(int(parent), int(session))
    return table


def _from_ps() -> dict[int, Entry]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    table = {}
    for line in listing.stdout.splitlines():
        pid, parent, state = line.split()
        with suppress(OSError):
            if not state.startswith("Z"):
                table[int(pid)] = Entry(int(parent), os.getsid(int(pid)))
    return table
