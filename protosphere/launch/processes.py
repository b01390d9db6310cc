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


def import_path() -> str:
    """PYTHONPATH of processes of ours: they import the Protosphere that started them, wherever it was found."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))


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

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # what a caller ignores (nohup, a shell's background jobs) stays ignored
    before = {n: was for n in signals if (was := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield deafen
    finally:
        for number, was in before.items():
            signal.signal(number, was)


# Says its id, which is its session's, and only then becomes the command. It holds the descriptor itself, so that
# there is no moment at which it lives and nobody would hear of it.
TELL = 'echo $$ >&0 && exec "$0" "$@" </dev/null'


class Entry(NamedTuple):
    """A living process: its parent, the session that it belongs to, and when it began, in the system's own words."""

    parent: int
    session: int
    began: str


class Family:
    """Processes that we start, each as the leader of a session, with all that they start in turn.

    Kinship is kept as sessions. Flower's SuperExec leads one of its own, and Ray's daemons lose their parent when
    theirs dies and overwrite their environment and command line; but a process cannot leave its session unless it
    founds another, and no other process can get into it. When all of a session are gone, its number may be given
    to a stranger: so the beginning of its leader is remembered, too.

    Args:
        tell: a file descriptor to which every process that is started says its id, a line each.
    """

    def __init__(self, tell: int = subprocess.DEVNULL) -> None:
        self._tell = tell
        self._children: list[subprocess.Popen[str]] = []
        # session -> when its leader began; "" if it was dead at the first look, None before that
        self._sessions: dict[int, str | None] = {}

    def start(self, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        """`subprocess.Popen(command, text=True, **options)` in a session of its own, its stdin empty."""
        child: subprocess.Popen[str] = subprocess.Popen(
            ["/bin/sh", "-c", TELL, *command],
            text=True,
            encoding="utf-8",
            errors="replace",
            stdin=self._tell,
            start_new_session=True,
            **options,
        )
        self._children.append(child)
        self.adopt(child.pid)
        return child

    def adopt(self, session: int) -> None:
        """Take in a session that another family of ours started, by its leader's id."""
        self._sessions.setdefault(session, None)

    def members(self) -> set[int]:
        """Ids of all its living processes; sessions founded by descendants are found and remembered."""
        table = processes()
        for session, began in list(self._sessions.items()):
            leader = table.get(session)
            if began is None:
                self._sessions[session] = leader.began if leader else ""
            elif leader and leader.began != began:
                del self._sessions[session]
        members: set[int] = set()
        while True:
            kin = {pid for pid, entry in table.items() if entry.session in self._sessions or entry.parent in members}
            if kin == members:
                return members
            members = kin
            for session in {table[pid].session for pid in members}:
                leader = table.get(session)
                self._sessions.setdefault(session, leader.began if leader else "")

    def stop(self, patience: float) -> None:
        """End all of it: SIGTERM, then SIGKILL to what is left after `patience` seconds."""
        self.signal(signal.SIGTERM)
        if not self.wait(patience):
            self.kill(patience)

    def kill(self, patience: float) -> None:
        """End all of it by SIGKILL, within `patience` seconds."""
        deadline = time.monotonic() + patience
        # again and again: what is being killed may just have started something
        while time.monotonic() < deadline:
            self.signal(signal.SIGKILL)
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

    def signal(self, number: int) -> None:
        """Send a signal to all of it."""
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
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            state, parent, _, session = fields[:4]
            if state not in "ZX":
                table[int(path.parent.name)] = Entry(int(parent), int(session), fields[19])
    return table


def _from_ps() -> dict[int, Entry]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=True)
    table = {}
    for line in listing.stdout.splitlines():
        pid, parent, state, began = line.split(maxsplit=3)
        with suppress(OSError):
            if not state.startswith("Z"):
                table[int(pid)] = Entry(int(parent), os.getsid(int(pid)), began)
    return table
